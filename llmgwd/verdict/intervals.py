"""Intervals that hold at every moment of a canary's life, computed from counts when they are shown.

Shares: prior-posterior ratio with a uniform prior (Waudby-Smith and Ramdas, "Confidence sequences for sampling without
replacement", 2020): all p whose posterior density exceeds alpha. Quantiles: the same, on the count of times beyond one.
Ratios of times: the shifts that Wilcoxon's statistic does not reject under Robbins' normal mixture boundary (1970);
exact in the limit of many times.
"""

import math
from collections.abc import Callable, Mapping

from llmgwd.verdict.sketch import WIDTH

Interval = tuple[float | None, float | None]
"""Lower and upper end; None: no bound."""

MIXTURE = 1.0
"""Robbins' boundary is tightest at about a hundred times on the smaller side."""
FARTHEST = 160
"""Buckets that a ratio is looked for in: up to a thousand times either way."""


def share_interval(hits: int, n: int, alpha: float) -> tuple[float, float]:
    """Of one arm's share, 0–1."""
    if n == 0:
        return 0.0, 1.0
    floor = math.log(alpha)
    peak = hits / n
    low = _edge(lambda p: _log_density(p, hits, n) > floor, peak, 0.0) if hits else 0.0
    high = _edge(lambda p: _log_density(p, hits, n) > floor, peak, 1.0) if hits < n else 1.0
    return low, high


def difference_interval(canary: tuple[int, int], stable: tuple[int, int], alpha: float) -> tuple[float, float]:
    """Of canary's share less stable's; an arm is (hits, n)."""
    low, high = share_interval(*canary, alpha / 2)
    stable_low, stable_high = share_interval(*stable, alpha / 2)
    return low - stable_high, high - stable_low


def ratio_interval(
    canary: Mapping[int, int], stable: Mapping[int, int], alpha: float, overstated: float = 1.0
) -> Interval:
    """Of canary times : stable times, as one factor on the whole distribution. Histograms are those of `sketch`.

    overstated: by how much the times tell less than their number says, see `guard`.
    """
    n, m = sum(canary.values()), sum(stable.values())
    if not n or not m:
        return None, None
    size = n * m / (n + m)
    variance = size * overstated / 12.0 + MIXTURE
    reach = math.sqrt(variance * math.log(variance / (MIXTURE * alpha * alpha))) / size
    ahead = _chance_above(canary, stable)
    return _shift_at(ahead, 0.5 + reach), _shift_at(ahead, 0.5 - reach)


def quantile_interval(times: Mapping[int, int], q: float, alpha: float) -> Interval:
    """Of one arm's quantile, in seconds."""
    n = sum(times.values())
    if not n:
        return None, None
    floor = math.log(alpha)
    kept: list[int] = []
    below = 0
    for index in sorted(times):
        if _log_density(q, below, n) > floor:
            kept.append(index)
        below += times[index]
    open_end = _log_density(q, n, n) > floor
    if not kept:
        return None, None
    first = min(times)
    low = None if kept[0] == first and _log_density(q, 0, n) > floor else math.exp(kept[0] * WIDTH)
    return low, None if open_end else math.exp((kept[-1] + 1) * WIDTH)


def quotient(canary: Interval, stable: Interval) -> Interval:
    """Of two positive values' intervals."""
    low = canary[0] / stable[1] if canary[0] is not None and stable[1] is not None else None
    high = canary[1] / stable[0] if canary[1] is not None and stable[0] is not None else None
    return low, high


def _log_density(p: float, hits: int, n: int) -> float:
    """Of the Beta(hits + 1, n - hits + 1) posterior."""
    if (p <= 0.0 and hits) or (p >= 1.0 and hits < n):
        return -math.inf
    log = math.lgamma(n + 2) - math.lgamma(hits + 1) - math.lgamma(n - hits + 1)
    return log + (hits * math.log(p) if hits else 0.0) + ((n - hits) * math.log1p(-p) if hits < n else 0.0)


def _edge(holds: Callable[[float], bool], inside: float, outside: float) -> float:
    if holds(outside):
        return outside
    for _ in range(50):
        middle = (inside + outside) / 2
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return outside


def _chance_above(canary: Mapping[int, int], stable: Mapping[int, int]) -> Callable[[float], float]:
    """P(canary time, moved `down` buckets, is above a stable one), ties half; times are spread within their bucket."""
    first, last = min(stable), max(stable)
    below = [0.0]
    for index in range(first, last + 1):
        below.append(below[-1] + stable.get(index, 0))
    total, n = below[-1], sum(canary.values())

    def chance(down: float) -> float:
        mass = 0.0
        for index, count in canary.items():
            place = min(max(index + 0.5 - down - first, 0.0), float(last + 1 - first))
            whole = min(int(place), last - first)
            mass += count * (below[whole] + (place - whole) * (below[whole + 1] - below[whole]))
        return mass / (total * n)

    return chance


def _shift_at(chance: Callable[[float], float], level: float) -> float | None:
    """The ratio by which canary times must be divided for `chance` to be `level`; None if there is none."""
    low, high = -float(FARTHEST), float(FARTHEST)
    if not chance(high) < level < chance(low):
        return None
    for _ in range(40):
        middle = (low + high) / 2
        if chance(middle) > level:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2 * WIDTH)
