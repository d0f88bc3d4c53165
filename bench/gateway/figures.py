"""The figures, each a measurement of one subject: what was used and seen, in a frozen record."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from bench.gateway import plain_load
from bench.gateway.stream_load import STREAM_S, StreamLoad
from bench.gateway.subjects import Running

RSS_LOOK_S = 0.25
SLOW_PART = 20
"""What a slow subject's load is divided by, as more would only measure its queue."""


@dataclass(frozen=True)
class Settings:
    """How much load, for how long."""

    seconds: int
    connections: int
    rate: float
    streams: int
    """For the CPU per chunk: few enough that no subject needs more than a core."""
    crowd: int
    churn_s: float


@dataclass(frozen=True)
class Busy:
    """As many requests as the subject takes over `Settings.connections`."""

    requests_per_s: float
    cpu_us_per_request: float
    p50_ms: float
    p99_ms: float
    errors: int


@dataclass(frozen=True)
class Paced:
    """A steady rate far below what it could take."""

    cpu_us_per_request: float
    p50_ms: float
    p99_ms: float
    errors: int


@dataclass(frozen=True)
class Streams:
    """Streams whose chunks come one by one."""

    cpu_us_per_chunk: float
    first_token_p50_ms: float
    first_token_p99_ms: float
    chunks_per_s: float
    lost: int


@dataclass(frozen=True)
class Crowd:
    """`Settings.crowd` streams at once; memory is the peak of the process tree."""

    streams: int
    rss_mb: float
    done: int
    lost: int
    stalled: int
    longest_gap_ms: float
    chunks_per_s: float
    """Below 50 a stream, something had too little of the machine."""
    cores: float
    """That the subject kept busy."""
    generator_lag_ms: float
    unasked_usage: int
    why_lost: str


@dataclass(frozen=True)
class Churn:
    """Memory while streams on fresh connections come and go: its peak in each fifth of the time."""

    minutes: float
    early_rss_mb: float
    late_rss_mb: float
    rss_mb_by_fifth: tuple[float, ...]
    streams: int
    lost: int


def busy(running: Running, settings: Settings, folder: Path) -> Busy:
    before_s = _cpu_s(running)
    load = plain_load.busy(running.port, settings.connections, settings.seconds, folder)
    used_s = _cpu_s(running) - before_s
    return Busy(
        requests_per_s=load.requests / load.duration_s,
        cpu_us_per_request=used_s * 1e6 / max(1, load.requests),
        p50_ms=load.p50_ms,
        p99_ms=load.p99_ms,
        errors=load.errors,
    )


async def paced(running: Running, settings: Settings, is_slow: bool) -> Paced:
    rate = settings.rate / SLOW_PART if is_slow else settings.rate
    before_s = _cpu_s(running)
    load = await plain_load.paced(running.port, rate, settings.seconds)
    used_s = _cpu_s(running) - before_s
    return Paced(used_s * 1e6 / max(1, load.requests), load.p50_ms, load.p99_ms, load.errors)


async def streams(running: Running, settings: Settings, is_slow: bool) -> Streams:
    """CPU is that of the time in which all streams run; their beginnings and ends are in it, the first ramp is not."""
    count = max(1, settings.streams // SLOW_PART) if is_slow else settings.streams
    load = StreamLoad(running.port, count)
    await load.ramp()
    load.first_token_s.clear()
    before_s, before_chunks = _cpu_s(running), load.chunks
    # Whole turns, so that each window has as many beginnings as ends.
    window_s = max(1, round(settings.seconds / STREAM_S)) * STREAM_S
    await asyncio.sleep(window_s)
    used_s, chunks = _cpu_s(running) - before_s, load.chunks - before_chunks
    load.drop()
    waits_ms = sorted(wait_s * 1e3 for wait_s in load.first_token_s) or [float("inf")]
    return Streams(
        cpu_us_per_chunk=used_s * 1e6 / max(1, chunks),
        first_token_p50_ms=waits_ms[len(waits_ms) // 2],
        first_token_p99_ms=waits_ms[len(waits_ms) * 99 // 100],
        chunks_per_s=chunks / window_s,
        lost=len(load.lost),
    )


async def crowd(running: Running, settings: Settings, is_slow: bool) -> Crowd:
    count = max(1, settings.crowd // SLOW_PART) if is_slow else settings.crowd
    load = StreamLoad(running.port, count)
    rss = asyncio.create_task(_peak_rss(running, float("inf")))
    await load.ramp()
    before_s, before_chunks = _cpu_s(running), load.chunks
    await asyncio.sleep(settings.seconds)
    used_s, chunks = _cpu_s(running) - before_s, load.chunks - before_chunks
    await load.finish()
    rss.cancel()
    return Crowd(
        streams=count,
        rss_mb=await rss,
        done=load.done,
        lost=len(load.lost),
        stalled=load.stalled,
        longest_gap_ms=load.longest_gap_s * 1e3,
        chunks_per_s=chunks / settings.seconds,
        cores=used_s / settings.seconds,
        generator_lag_ms=load.own_lag_s * 1e3,
        unasked_usage=load.unasked_usage,
        why_lost=load.lost[0] if load.lost else "",
    )


async def churn(running: Running, settings: Settings) -> Churn:
    """The early peak is that of the first fifth of the time after the ramp, the late one that of the last."""
    load = StreamLoad(running.port, settings.crowd, fresh=True)
    await load.ramp()
    peaks = [await _peak_rss(running, settings.churn_s / 5) for _ in range(5)]
    await load.finish()
    return Churn(settings.churn_s / 60, peaks[0], peaks[-1], tuple(peaks), load.done, len(load.lost))


async def _peak_rss(running: Running, seconds: float) -> float:
    """The highest sum of resident memory within that time, or until cancelled, in MB (10⁶ bytes)."""
    peak = 0
    end = asyncio.get_running_loop().time() + seconds
    try:
        while asyncio.get_running_loop().time() < end:
            if running.group is not None:
                peak = max(peak, running.group.rss_bytes())
            await asyncio.sleep(RSS_LOOK_S)
    except asyncio.CancelledError:
        pass
    return peak / 1e6


def _cpu_s(running: Running) -> float:
    return running.group.cpu_s() if running.group is not None else 0.0
