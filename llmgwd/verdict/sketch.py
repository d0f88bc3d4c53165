"""Log-bucket histograms: constant relative error, constant size, merged by addition."""

import math
from collections.abc import Mapping

WIDTH = math.log(2) / 16
"""Width of a bucket in the logarithm: a value is known to within 2.2 %."""
LOWEST, HIGHEST = -320, 320
"""Bucket range: about 1 µs to 12 days when values are seconds."""


def bucket(value: float) -> int:
    """The bucket of a positive value; zero and below fall into the lowest."""
    if value <= 0:
        return LOWEST
    index = math.floor(math.log(value) / WIDTH)
    # Compared rather than clamped with min and max: this runs for every request of the gateway.
    if index < LOWEST:
        return LOWEST
    return index if index < HIGHEST else HIGHEST


def add(into: dict[int, int], other: Mapping[int, int]) -> None:
    """Merges `other` into `into`."""
    for index, count in other.items():
        into[index] = into.get(index, 0) + count


def quantile(histogram: Mapping[int, int], q: float) -> float | None:
    """The value at quantile `q` in 0–1, at its bucket's geometric middle; None without samples."""
    total = sum(histogram.values())
    if total == 0:
        return None
    seen = 0
    index = LOWEST
    for index in sorted(histogram):
        seen += histogram[index]
        if seen >= q * total:
            break
    return math.exp((index + 0.5) * WIDTH)
