"""The scale of times: fine cells in which workers count, coarse ones in which the daemon remembers.

A fine cell is an eighth of a `sketch` bucket, so that one becomes the other by a shift of three bits.
"""

import math
from collections.abc import Mapping

from llmgwd.verdict.sketch import HIGHEST, LOWEST, WIDTH

FINE_BITS = 3
FINE_PER_COARSE = 1 << FINE_BITS
STEP = WIDTH / FINE_PER_COARSE
"""Width of a fine cell in the logarithm, 0.54 %: what a limit on a ratio may be off by, in the canary's favour."""

_LOWEST, _HIGHEST = LOWEST * FINE_PER_COARSE, HIGHEST * FINE_PER_COARSE
_PER_LOG = 1 / STEP


def cell(seconds: float) -> int:
    """The fine cell of a time; zero and below fall into the lowest, what is no number into the highest."""
    if seconds <= 0:
        return _LOWEST
    if not seconds < math.inf:
        return _HIGHEST
    return min(_HIGHEST, max(_LOWEST, math.floor(math.log(seconds) * _PER_LOG)))


def add_coarse(into: dict[int, int], fine: Mapping[int, int]) -> None:
    """Adds a histogram of fine cells to one of `sketch` buckets."""
    known = into.get
    for index, count in fine.items():
        coarse = index >> FINE_BITS
        into[coarse] = known(coarse, 0) + count


def spread_quantile(times: Mapping[int, int], q: float) -> float | None:
    """The value at quantile `q` of a histogram of `sketch` buckets, times spread evenly within their bucket."""
    total = sum(times.values())
    if total == 0:
        return None
    wanted, below, index = q * total, 0, LOWEST
    for index in sorted(times):
        if below + times[index] >= wanted:
            break
        below += times[index]
    return math.exp((index + (wanted - below) / times[index]) * WIDTH)


def steps_within(ratio: float) -> tuple[int, int]:
    """A ratio as whole fine steps: the most and the least that dividing by it moves a cell down.

    A time of at most `ratio` × v lies no more than the first number of cells above v's; a time of at least
    `ratio` × v no less than the second.
    """
    exact = math.log(ratio) * _PER_LOG
    return math.ceil(exact - 1e-9), math.floor(exact + 1e-9)
