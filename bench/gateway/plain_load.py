"""Load of plain completions: as fast as it goes over some connections (wrk), or at a steady rate (our own client)."""

import asyncio
import contextlib
import json
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bench.gateway.environments import ensure_debian
from bench.gateway.link import MODEL

_BODY = json.dumps(
    {"model": MODEL, "messages": [{"role": "user", "content": "Say something short, please."}], "max_tokens": 16}
)
_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [[%s]]
function done(summary, latency)
  local e = summary.errors
  io.write(string.format(
    '\\nDONE {"requests": %%d, "duration_us": %%d, "p50_us": %%d, "p99_us": %%d, "errors": %%d}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
"""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_LAST_ANSWERS_S = 10.0


@dataclass(frozen=True)
class PlainLoad:
    """What the clients saw. Latencies are from the request's write to the reply's last byte."""

    requests: int
    errors: int
    duration_s: float
    p50_ms: float
    p99_ms: float


def busy(port: int, connections: int, seconds: int, folder: Path) -> PlainLoad:
    """Every connection asks again as soon as it is answered; one thread of wrk."""
    script = folder / "completion.lua"
    script.write_text(_SCRIPT % _BODY)
    argv = [ensure_debian("wrk"), "--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s"]
    argv += ["--timeout", "10s", "--script", str(script), f"http://127.0.0.1:{port}/v1/chat/completions"]
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    told = json.loads(output.rpartition("DONE ")[2])
    return PlainLoad(
        requests=told["requests"],
        errors=told["errors"],
        duration_s=told["duration_us"] / 1e6,
        p50_ms=told["p50_us"] / 1e3,
        p99_ms=told["p99_us"] / 1e3,
    )


async def paced(port: int, rate: float, seconds: float) -> PlainLoad:
    """`rate` requests a second whatever becomes of them: one that finds no idle connection opens another."""
    load = _Paced(port)
    started = time.perf_counter()
    sent = 0
    while (now := time.perf_counter()) < started + seconds:
        while sent < (now - started) * rate:
            sent += 1
            load.ask()
        await asyncio.sleep(started + sent / rate - now)
    await load.finish()
    errors = sent - len(load.latencies_s)
    ranked = sorted(load.latencies_s) or [float("inf")]
    p50_ms, p99_ms = (ranked[int(len(ranked) * q)] * 1e3 for q in (0.5, 0.99))
    return PlainLoad(sent, errors, seconds, p50_ms, p99_ms)


class _Paced:
    """The connections of a steady load."""

    def __init__(self, port: int) -> None:
        self.idle: list[_Connection] = []
        self.latencies_s: list[float] = []
        self._asked = 0
        self._answered = 0
        self._all_answered = asyncio.Event()
        self._is_finishing = False
        self._port = port
        self._all: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()

    def ask(self) -> None:
        self._asked += 1
        if self.idle:
            self.idle.pop().ask()
            return
        task = asyncio.get_running_loop().create_task(self._open())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def answered(self, latency_s: float | None) -> None:
        """A request ended; None is an error."""
        self._answered += 1
        if latency_s is not None:
            self.latencies_s.append(latency_s)
        if self._is_finishing and self._answered == self._asked:
            self._all_answered.set()

    async def finish(self) -> None:
        """Waits for the answers still to come, up to _LAST_ANSWERS_S, and closes every connection."""
        self._is_finishing = True
        if self._answered < self._asked:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_ANSWERS_S):
                    await self._all_answered.wait()
        for connection in self._all:
            connection.close()

    async def _open(self) -> None:
        try:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(lambda: _Connection(self), "127.0.0.1", self._port)
        except OSError:
            self.answered(None)
            return
        self._all.add(connection)
        connection.ask()


class _Connection(asyncio.Protocol):
    """One keep-alive connection with one request at a time."""

    def __init__(self, load: _Paced) -> None:
        self._load = load
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._sent_at = 0.0
        self._is_asking = False
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(_BODY)}\r\n\r\n{_BODY}".encode()

    def ask(self) -> None:
        if self._transport is None:
            self._load.answered(None)
            return
        self._is_asking = True
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)

    def close(self) -> None:
        self._is_asking = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not _is_whole(self._buffer):
            return
        latency_s = time.perf_counter() - self._sent_at
        self._is_asking = False
        self._load.answered(latency_s if self._buffer.startswith(b"HTTP/1.1 200") else None)
        self._buffer = b""
        self._load.idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self in self._load.idle:
            self._load.idle.remove(self)
        if self._is_asking:
            self._is_asking = False
            self._load.answered(None)


def _is_whole(reply: bytes) -> bool:
    head_end = reply.find(b"\r\n\r\n") + 4
    if head_end < 4:
        return False
    length = _LENGTH.search(reply, 0, head_end)
    return len(reply) >= head_end + int(length[1]) if length else reply.endswith(b"0\r\n\r\n")
