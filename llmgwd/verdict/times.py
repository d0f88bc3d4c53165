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
from functools import cached_property, lru_cache
from itertools import accumulate, repeat
from operator import add
from statistics import NormalDist
from typing import NamedTuple

from llmgwd.verdict.counts import add_cells
from llmgwd.verdict.scale import FINE_BITS, FINE_PER_COARSE
from llmgwd.verdict.shares import Hits, ShareBets, bet_logs, share_logs
from llmgwd.verdict.wealth import BOLDEST, Recent

LEVELS = 100
"""Ranks are taken in hundredths: a look becomes a count by level."""
TAIL_LEVEL = 95
LEAST_REFERENCE = 20.0
"""Stable times that must have been seen before anything is bet."""
MOST_REFERENCE = 4000.0
"""Beyond this the reference is halved, so that it follows stable over the day."""

FRESH = 50
"""What a look adds to the reference is put by until it is one part in so many: ranks then last a few looks."""
CENTRES, TAIL_CENTRES = 128, 1024
"""Centres are rounded to these parts of 1, so that few canaries' looks need bets of their own."""
KEPT_GAMES = 512

Levels = Sequence[int]
"""The levels of a look's times, one entry a time."""

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

    def learn(self, recent: Recent, top: float, n: int) -> None:
        recent.add(top, n, self.half_life, self.prior_top, self.prior_bottom)


NORMAL_SCORE = Score(NORMAL, 10.0, 20.0, 150.0)
SKEWED_SCORE = Score(SKEWED, 20.0 * sum(SKEWED) / LEVELS, 20.0, 150.0)
TAIL_SCORE = Score(TAIL, 2.5, 50.0, 500.0)


class Sums(NamedTuple):
    """Of a look's times: how many, their scores, and the squares of the normal ones."""

    n: int = 0
    normal: float = 0.0
    squares: float = 0.0
    skewed: float = 0.0
    tail: float = 0.0


_SCORES = tuple(zip(NORMAL, [score * score for score in NORMAL], SKEWED, TAIL, strict=True))


def sums_of(levels: Levels) -> Sums:
    return Sums(len(levels), *map(sum, zip(*[_SCORES[level] for level in levels], strict=True)))


RANK_SIZES = (0.08, 0.2)
"""Roll-back bets on the normal score: the shifts, in standard deviations, that they are best for."""
LARGE = 0.65
"""Roll-back bet on the skewed score, as a part of what would make it the likelihood ratio itself."""
RANK_ODDS = (0.33, 0.42, 0.25)
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
    fresh: dict[int, int] = field(default_factory=dict)
    """Times by bucket that are not in the reference yet."""
    fresh_n: int = 0
    normal: Recent = field(default_factory=NORMAL_SCORE.recent)
    skewed: Recent = field(default_factory=SKEWED_SCORE.recent)
    tail: Recent = field(default_factory=TAIL_SCORE.recent)

    @cached_property
    def ranks(self) -> "Ranks | None":
        """None while stable has shown too few times."""
        return Ranks(self.reference) if self.weight >= LEAST_REFERENCE else None

    def learn_times(self, stable: Mapping[int, int], n: int) -> None:
        """Takes stable's `n` times of a look, by bucket; to be called after the look's bets."""
        add_cells(self.fresh, stable)
        self.fresh_n += n
        if self.fresh_n * FRESH < self.weight:
            return
        if self.weight > MOST_REFERENCE:
            self.reference = {index: weight / 2 for index, weight in self.reference.items() if weight > 0.01}
        for index, count in self.fresh.items():
            self.reference[index] = self.reference.get(index, 0.0) + count
        self.weight = sum(self.reference.values())
        self.fresh, self.fresh_n = {}, 0
        self.__dict__.pop("ranks", None)

    def learn_scores(self, stable: Sums) -> None:
        NORMAL_SCORE.learn(self.normal, stable.normal, stable.n)
        SKEWED_SCORE.learn(self.skewed, stable.skewed, stable.n)
        TAIL_SCORE.learn(self.tail, stable.tail, stable.n)


_WITHIN = tuple((cell + 0.5) / FINE_PER_COARSE for cell in range(FINE_PER_COARSE))


class Ranks:
    """Turns fine cells into levels of stable's earlier times, spread evenly within a bucket."""

    def __init__(self, reference: Mapping[int, float]) -> None:
        """`reference` must not be empty."""
        self._first, last = min(reference), max(reference)
        weights = map(reference.get, range(self._first, last + 1), repeat(0.0))
        self._below: list[float] = [0.0, *accumulate(weights)]
        self._per_weight = LEVELS / self._below[-1]

    def level(self, index: int) -> int:
        return self.levels({index: 1})[0]

    def levels(self, cells: Mapping[int, int], down: int = 0) -> list[int]:
        """The level of each time, its cell taken `down` steps down first."""
        first, below, per_weight = self._first, self._below, self._per_weight
        end, top, inside = len(below) - 1, LEVELS - 1, FINE_PER_COARSE - 1
        levels = []
        for index, count in cells.items():
            place = (index - down >> FINE_BITS) - first
            if place < 0:
                level = 0
            elif place >= end:
                level = top
            else:
                low = below[place]
                level = int((low + _WITHIN[index - down & inside] * (below[place + 1] - low)) * per_weight)
                if level > top:
                    level = top
            levels.append(level)
            if count > 1:
                levels += [level] * (count - 1)
        return levels


class Rows(dict[int, tuple[float, ...]]):
    """By level, the log factor of one time for each bet; worked out when first asked for, since few levels occur."""

    def __init__(self, centre: float, sizes: Sequence[float]) -> None:
        super().__init__()
        self._centre, self._sizes = centre, sizes

    def __missing__(self, level: int) -> tuple[float, ...]:
        off = NORMAL[level] - self._centre
        row = self[level] = tuple([math.log1p(size * off) for size in self._sizes])
        return row

    def add_up(self, levels: Levels) -> list[float]:
        """The log factor of all `levels` for each bet."""
        if not levels:
            return [0.0] * len(self._sizes)
        return list(map(sum, zip(*[self[level] for level in levels], strict=True)))


class NormalGame:
    """The bets on the normal score under one centre and ratio."""

    def __init__(self, ratio: float, centre: float) -> None:
        up, down = boldest(ratio, centre)
        per_deviation = NORMAL_RANGE / (1.0 + ratio)
        against = [min(size * per_deviation, up) for size in RANK_SIZES]
        behind = [-min(size * per_deviation, down) for size in RANK_BEHIND]
        self._strict, self._lenient = Rows(centre, against), Rows(centre, behind)
        self._stable = Rows(centre, [-size * ratio for size in (*against, *behind)])
        self._first_behind = len(against)

    def logs(self, canary: Levels, canary_lenient: Levels, stable: Levels) -> tuple[list[float], list[float]]:
        """Of a look, for the roll-back and the promote bets; canary: shifted for the first, canary_lenient: for the
        others."""
        of_stable, first = self._stable.add_up(stable), self._first_behind
        return (
            list(map(add, self._strict.add_up(canary), of_stable)),
            list(map(add, self._lenient.add_up(canary_lenient), of_stable[first:])),
        )


_normal_game = lru_cache(KEPT_GAMES)(NormalGame)


@lru_cache(KEPT_GAMES)
def _skewed_bet(ratio: float, centre: float) -> tuple[Sequence[float], Sequence[float]]:
    """By level, the log factors of the roll-back bet on the skewed score: of a canary time and of a stable one."""
    up, _ = boldest(ratio, centre)
    size = min(LARGE / (max(centre, 1e-9) * (1.0 + ratio)), up)
    return (
        [math.log1p(size * (score - centre)) for score in SKEWED],
        [math.log1p(-size * ratio * (score - centre)) for score in SKEWED],
    )


@lru_cache(KEPT_GAMES)
def _tail_bets(ratio: float, centre: float) -> ShareBets:
    """Whether a time is in the tail is a yes/no metric, without a margin."""
    up, down = boldest(ratio, centre)
    noise = max(centre * (1.0 - centre) * (1.0 + ratio), 1e-9)
    quiet = (1.0 - centre) * (1.0 + ratio)
    against = tuple([bet_logs(min(size / noise, up), ratio, centre, centre) for size in TAIL_SIZES])
    behind = tuple([bet_logs(-min(size / quiet, down), ratio, centre, centre) for size in TAIL_BEHIND])
    return ShareBets(ratio, centre, centre, against, behind)


def boldest(ratio: float, centre: float) -> tuple[float, float]:
    """The largest bet sizes, roll-back and promote, that leave a tenth of the wealth whatever comes."""
    return (
        BOLDEST / max(centre, ratio * (1.0 - centre), 1e-9),
        BOLDEST / max(1.0 - centre, ratio * centre, 1e-9),
    )


def rank_logs(
    record: TimesRecord, ratio: float, canary: Levels, canary_lenient: Levels, stable: Levels
) -> tuple[list[float], list[float]]:
    """Log factors of a look for the whole distribution.

    canary: shifted for the roll-back bets; canary_lenient: for the promote bets; ratio: share / (1 - share).
    """
    against, behind = _normal_game(ratio, _rounded(record.normal, CENTRES)).logs(canary, canary_lenient, stable)
    of_canary, of_stable = _skewed_bet(ratio, _rounded(record.skewed, CENTRES))
    large = sum(map(of_canary.__getitem__, canary)) + sum(map(of_stable.__getitem__, stable))
    return [*against, large], behind


def tail_logs(
    record: TimesRecord, ratio: float, canary: Levels, canary_lenient: Levels, stable: Levels
) -> tuple[list[float], list[float]]:
    """Log factors of a look for the 95th percentile alone."""
    bets, others = _tail_bets(ratio, _rounded(record.tail, TAIL_CENTRES)), _beyond(stable)
    return share_logs(bets, _beyond(canary), others)[0], share_logs(bets, _beyond(canary_lenient), others)[1]


def _beyond(levels: Levels) -> Hits:
    return sum(map(TAIL.__getitem__, levels)), len(levels)


def _rounded(recent: Recent, parts: int) -> float:
    return int(recent.value * parts + 0.5) / parts
