"""Bets on times: is the canary's time to first token, divided by the limit, larger than stable's?

No shape is assumed. A time is scored by its rank in stable's own *earlier* times: a number in [0, 1] that is fixed
before the look. A canary time is first divided by the limit, a whole number of fine cells down, rounded in the
canary's favour. Within the limit its score is then on average no larger than stable's, and the game

    canary   1 + b · (x - c)         stable   1 - b · r · (x - c)

is fair, for any score that rises with time, as `shares` explains for x in {0, 1}. Two scores are used for the whole
distribution: normal quantiles of the rank, the best for small shifts of log-normal times, and their exponential, the
likelihood ratio of a large one. A third, "beyond stable's 95th percentile", makes a metric of its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from statistics import NormalDist

from llmgwd.verdict.scale import FINE_BITS, FINE_PER_COARSE
from llmgwd.verdict.wealth import BOLDEST, Recent

LEVELS = 100
"""Ranks are taken in hundredths: a look becomes a count by level."""
TAIL_LEVEL = 95
LEAST_REFERENCE = 20.0
"""Stable times that must have been seen before anything is bet."""
MOST_REFERENCE = 4000.0
"""Beyond this the reference is halved, so that it follows stable over the day."""

Tally = Sequence[tuple[int, float]]
"""(level, count) of the times of a look."""

_NORMAL = [NormalDist().inv_cdf((level + 0.5) / LEVELS) for level in range(LEVELS)]
NORMAL_RANGE = _NORMAL[-1] - _NORMAL[0]


def _unit(values: Sequence[float]) -> tuple[float, ...]:
    low, high = min(values), max(values)
    return tuple((value - low) / (high - low) for value in values)


NORMAL = _unit(_NORMAL)
SKEWED = _unit([math.exp(0.6 * z) for z in _NORMAL])
TAIL = tuple(float(level >= TAIL_LEVEL) for level in range(LEVELS))


@dataclass(frozen=True)
class Score:
    """A score by level with what is known of its mean on stable before any time was seen."""

    by_level: tuple[float, ...]
    prior_top: float
    prior_bottom: float
    half_life: float

    def recent(self) -> Recent:
        return Recent(self.prior_top, self.prior_bottom)

    def learn(self, recent: Recent, stable: Tally) -> None:
        top = sum(count * self.by_level[level] for level, count in stable)
        recent.add(top, sum(count for _, count in stable), self.half_life, self.prior_top, self.prior_bottom)


NORMAL_SCORE = Score(NORMAL, 10.0, 20.0, 150.0)
SKEWED_SCORE = Score(SKEWED, 20.0 * sum(SKEWED) / LEVELS, 20.0, 150.0)
TAIL_SCORE = Score(TAIL, 2.5, 50.0, 500.0)

RANK_SIZES = (0.08, 0.2)
"""Roll-back bets on the normal score: the shifts, in standard deviations, that they are best for."""
LARGE = 0.65
"""Roll-back bet on the skewed score, as a part of what would make it the likelihood ratio itself."""
RANK_ODDS = (0.28, 0.42, 0.3)
RANK_BEHIND = (0.08, 0.18, 0.36)
TAIL_SIZES = (0.03, 0.1, 0.3, 0.7)
TAIL_ODDS = (0.4, 0.25, 0.2, 0.15)
TAIL_BEHIND = (0.3, 0.6)


@dataclass
class TimesRecord:
    """Stable's earlier times, and its recent mean scores."""

    reference: dict[int, float] = field(default_factory=dict)
    """Weight by `sketch` bucket."""
    weight: float = 0.0
    """Of all buckets."""
    normal: Recent = field(default_factory=NORMAL_SCORE.recent)
    skewed: Recent = field(default_factory=SKEWED_SCORE.recent)
    tail: Recent = field(default_factory=TAIL_SCORE.recent)

    def learn_times(self, stable: Mapping[int, int]) -> None:
        """Adds stable's times of a look, in fine cells; to be called after the look's bets."""
        if self.weight > MOST_REFERENCE:
            self.reference = {index: weight / 2 for index, weight in self.reference.items() if weight > 0.01}
        for index, count in stable.items():
            coarse = index >> FINE_BITS
            self.reference[coarse] = self.reference.get(coarse, 0.0) + count
        self.weight = sum(self.reference.values())

    def learn_scores(self, stable: Tally) -> None:
        NORMAL_SCORE.learn(self.normal, stable)
        SKEWED_SCORE.learn(self.skewed, stable)
        TAIL_SCORE.learn(self.tail, stable)


class Ranks:
    """Turns fine cells into levels of stable's earlier times, spread evenly within a bucket."""

    def __init__(self, reference: Mapping[int, float]) -> None:
        """`reference` must not be empty."""
        self._first, last = min(reference), max(reference)
        weights = map(reference.get, range(self._first, last + 1), repeat(0.0))
        self._below: list[float] = [0.0, *accumulate(weights)]
        self._per_weight = LEVELS / self._below[-1]

    def level(self, index: int) -> int:
        place = (index >> FINE_BITS) - self._first
        if place < 0:
            return 0
        if place >= len(self._below) - 1:
            return LEVELS - 1
        low = self._below[place]
        within = ((index & (FINE_PER_COARSE - 1)) + 0.5) / FINE_PER_COARSE
        return min(LEVELS - 1, int((low + within * (self._below[place + 1] - low)) * self._per_weight))

    def tally(self, cells: Mapping[int, int], down: int = 0) -> Tally:
        """Counts by level, each cell taken `down` steps down first."""
        levels: dict[int, int] = {}
        for index, count in cells.items():
            level = self.level(index - down)
            levels[level] = levels.get(level, 0) + count
        return tuple(levels.items())


def ranks_of(record: TimesRecord) -> Ranks | None:
    """None while stable has shown too few times."""
    return Ranks(record.reference) if record.weight >= LEAST_REFERENCE else None


def boldest(ratio: float, centre: float) -> tuple[float, float]:
    """The largest bet sizes, roll-back and promote, that leave a tenth of the wealth whatever comes."""
    return (
        BOLDEST / max(centre, ratio * (1.0 - centre), 1e-9),
        BOLDEST / max(1.0 - centre, ratio * centre, 1e-9),
    )


def rank_logs(
    record: TimesRecord, ratio: float, canary: Tally, canary_lenient: Tally, stable: Tally
) -> tuple[list[float], list[float]]:
    """Log factors of a look for the whole distribution.

    canary: shifted for the roll-back bets; canary_lenient: for the promote bets; ratio: share / (1 - share).
    """
    centre, skewed = record.normal.value, max(record.skewed.value, 1e-9)
    up, down = boldest(ratio, centre)
    per_deviation = NORMAL_RANGE / (1.0 + ratio)
    against = [_log(NORMAL, centre, min(size * per_deviation, up), ratio, canary, stable) for size in RANK_SIZES]
    large = min(LARGE / (skewed * (1.0 + ratio)), boldest(ratio, skewed)[0])
    against.append(_log(SKEWED, skewed, large, ratio, canary, stable))
    behind = [
        _log(NORMAL, centre, -min(size * per_deviation, down), ratio, canary_lenient, stable) for size in RANK_BEHIND
    ]
    return against, behind


def tail_logs(
    record: TimesRecord, ratio: float, canary: Tally, canary_lenient: Tally, stable: Tally
) -> tuple[list[float], list[float]]:
    """Log factors of a look for the 95th percentile alone."""
    centre = record.tail.value
    up, down = boldest(ratio, centre)
    noise = max(centre * (1.0 - centre) * (1.0 + ratio), 1e-9)
    quiet = (1.0 - centre) * (1.0 + ratio)
    canary, canary_lenient, stable = _beyond(canary), _beyond(canary_lenient), _beyond(stable)
    against = [_log(TAIL, centre, min(size / noise, up), ratio, canary, stable) for size in TAIL_SIZES]
    behind = [_log(TAIL, centre, -min(size / quiet, down), ratio, canary_lenient, stable) for size in TAIL_BEHIND]
    return against, behind


def _beyond(tally: Tally) -> Tally:
    """The same for the tail's score, which knows two levels only."""
    beyond = sum(count for level, count in tally if level >= TAIL_LEVEL)
    return (0, sum(count for _, count in tally) - beyond), (TAIL_LEVEL, beyond)


def _log(by_level: Sequence[float], centre: float, size: float, ratio: float, canary: Tally, stable: Tally) -> float:
    log = 0.0
    for level, count in canary:
        log += count * math.log1p(size * (by_level[level] - centre))
    weight = -size * ratio
    for level, count in stable:
        log += count * math.log1p(weight * (by_level[level] - centre))
    return log
