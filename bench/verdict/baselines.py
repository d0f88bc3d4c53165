"""What others do, as far as they document it: each takes a stream and gives the time of its roll-back, or None.

All see a request when its answer has ended, look every 30 s, and are held to +1 point of failures, 1.2 × the time to
first token and 0.8 × the speed.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bench.verdict.streams import Floats, Stream

LOOK_S = 30.0
POINTS, TTFT, TOKEN = 0.01, 1.2, 1 / 0.8
BUCKET = math.log(1.02)
BUCKETS, LOWEST = 1200, -600
TWO_SIDED_5 = 1.96
ONE_SIDED_1 = 2.326

Baseline = Callable[[Stream, float], float | None]


@dataclass
class Arm:
    """Counts of one arm over a window; histograms of log times."""

    n: int = 0
    failed: int = 0
    ttft: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    token: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))

    def add(self, other: "Arm") -> None:
        self.n += other.n
        self.failed += other.failed
        self.ttft += other.ttft
        self.token += other.token

    @property
    def failing(self) -> float:
        return self.failed / self.n


def threshold(stream: Stream, end_s: float) -> float | None:
    """Figures since the start against the limits, once the canary has 50 requests."""
    canary, stable = Arm(), Arm()
    for at_s, new_canary, new_stable in _windows(stream, end_s, LOOK_S):
        canary.add(new_canary)
        stable.add(new_stable)
        if canary.n >= 50 and stable.n and any(_beyond(canary, stable)):
            return at_s
    return None


def argo_like(stream: Stream, end_s: float) -> float | None:
    """A measurement a minute, each on its own; a metric with more than three failed ones ends the roll-out."""
    failures = [0, 0, 0]
    for at_s, canary, stable in _windows(stream, end_s, 60.0):
        if not canary.n or not stable.n:
            continue
        failures = [count + beyond for count, beyond in zip(failures, _beyond(canary, stable), strict=True)]
        if max(failures) > 3:
            return at_s
    return None


def kayenta_like(stream: Stream, end_s: float) -> float | None:
    """Ten-minute intervals; a Mann-Whitney test at 98 % with a tolerance of a quarter of the shift fails a metric."""
    for at_s, canary, stable in _windows(stream, end_s, 600.0):
        if min(canary.n, stable.n) < 10:
            continue
        if _z_of_shares(canary, stable, 0.0, pooled=True) > ONE_SIDED_1 / 0.75:
            return at_s
        for ours, theirs in ((canary.ttft, stable.ttft), (canary.token, stable.token)):
            if _mann_whitney(ours, theirs) > ONE_SIDED_1 / 0.75:
                return at_s
    return None


def repeated_z(stream: Stream, end_s: float) -> float | None:
    """z tests at p < 0.05 of everything since the start, at every look from 30 canary requests on."""
    return _z_tests(stream, end_s, 0.0, 1.0, 1.0)


def z_to_limit(stream: Stream, end_s: float) -> float | None:
    """The same against the limits instead of against no difference."""
    return _z_tests(stream, end_s, POINTS, TTFT, TOKEN)


BASELINES: Mapping[str, Baseline] = {
    "threshold": threshold,
    "Argo-like": argo_like,
    "Kayenta-like": kayenta_like,
    "z each look": repeated_z,
    "z to the limit": z_to_limit,
}


def _windows(stream: Stream, end_s: float, every_s: float) -> Iterator[tuple[float, Arm, Arm]]:
    """What ended in each window on canary and stable."""
    order = np.argsort(stream.known_s, kind="stable")
    order = order[stream.known_s[order] <= end_s]
    ends = np.arange(every_s, end_s + 1e-6, every_s)
    stops = np.searchsorted(stream.known_s[order], ends, side="right")
    ttft, token = _buckets(stream.ttft_s), _buckets(stream.token_s)
    start = 0
    for at_s, stop in zip(ends.tolist(), stops.tolist(), strict=True):
        batch = order[start:stop]
        start = stop
        arms = []
        for canary in (True, False):
            mine = batch[stream.canary[batch] == canary]
            good = mine[stream.ok[mine]]
            arms.append(
                Arm(
                    len(mine),
                    len(mine) - len(good),
                    np.bincount(ttft[good], minlength=BUCKETS),
                    np.bincount(token[good], minlength=BUCKETS),
                )
            )
        yield at_s, arms[0], arms[1]


def _buckets(seconds: Floats) -> NDArray[np.int64]:
    return np.clip(np.floor(np.log(seconds) / BUCKET).astype(np.int64) - LOWEST, 0, BUCKETS - 1)


def _beyond(canary: Arm, stable: Arm) -> tuple[bool, bool, bool]:
    failing = canary.failing - stable.failing > POINTS
    if not canary.ttft.any() or not stable.ttft.any():
        return failing, False, False
    slow_start = _log_quantile(canary.ttft, 0.95) - _log_quantile(stable.ttft, 0.95) > math.log(TTFT)
    slow = _log_quantile(canary.token, 0.5) - _log_quantile(stable.token, 0.5) > math.log(TOKEN)
    return failing, slow_start, slow


def _log_quantile(histogram: NDArray[np.int64], q: float) -> float:
    sums = histogram.cumsum()
    return float(np.searchsorted(sums, q * sums[-1])) * BUCKET


def _z_of_shares(canary: Arm, stable: Arm, points: float, *, pooled: bool = False) -> float:
    if pooled:
        share = (canary.failed + stable.failed) / (canary.n + stable.n)
        variance = share * (1 - share) * (1 / canary.n + 1 / stable.n)
    else:
        variance = sum(max(arm.failing * (1 - arm.failing), 0.5 / arm.n) / arm.n for arm in (canary, stable))
    return (canary.failing - stable.failing - points) / math.sqrt(variance) if variance > 0 else 0.0


def _mann_whitney(canary: NDArray[np.int64], stable: NDArray[np.int64]) -> float:
    """z of the rank sum, with ties."""
    n, m = int(canary.sum()), int(stable.sum())
    if min(n, m) < 10:
        return 0.0
    wins = float((canary * (stable.cumsum() - stable / 2)).sum())
    both = (canary + stable).astype(np.float64)
    total = n + m
    variance = n * m / 12 * (total + 1 - float((both**3 - both).sum()) / (total * (total - 1)))
    return (wins - n * m / 2) / math.sqrt(variance) if variance > 0 else 0.0


def _z_tests(stream: Stream, end_s: float, points: float, ttft: float, token: float) -> float | None:
    order = np.argsort(stream.known_s, kind="stable")
    order = order[stream.known_s[order] <= end_s]
    ticks = np.arange(LOOK_S, end_s + 1e-6, LOOK_S)
    stops = np.searchsorted(stream.known_s[order], ticks, side="right")

    def sums(values: NDArray[np.generic]) -> Floats:
        total: Floats = np.r_[0.0, np.cumsum(values[order].astype(np.float64))][stops]
        return total

    arms = []
    for mine in (stream.canary, ~stream.canary):
        well = mine & stream.ok
        logs = [np.log(stream.ttft_s), np.log(stream.token_s)]
        arms.append(
            (sums(mine), sums(mine & ~stream.ok), sums(well), [(sums(well * x), sums(well * x * x)) for x in logs])
        )
    (n, failed, good, moments), (m, stable_failed, stable_good, stable_moments) = arms
    with np.errstate(divide="ignore", invalid="ignore"):
        p, q = failed / n, stable_failed / m
        if points:
            variance = np.maximum(p * (1 - p), 0.5 / n) / n + np.maximum(q * (1 - q), 0.5 / m) / m
        else:
            both = (failed + stable_failed) / (n + m)
            variance = both * (1 - both) * (1 / n + 1 / m)
        hit = (p - q - points) / np.sqrt(variance) > TWO_SIDED_5
        for (s, ss), (t, tt), limit in zip(moments, stable_moments, (ttft, token), strict=True):
            mean, stable_mean = s / good, t / stable_good
            spread = (ss / good - mean**2) / good + (tt / stable_good - stable_mean**2) / stable_good
            enough = (good >= 5) & (stable_good >= 5)
            hit |= enough & ((mean - stable_mean - math.log(limit)) / np.sqrt(spread) > TWO_SIDED_5)
    hit &= (n >= 30) & (m >= 30)
    return float(ticks[int(np.argmax(hit))]) if hit.any() else None
