"""Wealth won by betting against a fair game, and the forgetting average that the bets lean on.

Ville (1939): a non-negative supermartingale that starts at w exceeds w/a at any time with probability at most a.
Betting on bounded scores: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (2024).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

START = 0.85
"""The part of a metric's budget that is put to work at once; the rest is kept for trouble that comes late."""
PACE = 25.0
"""Canary requests after which the rest begins to be spent noticeably."""
HIGHEST_WEALTH = 1e150
HIGHEST_LOG = 10.0
"""The promote bets' log wealth is cut here, so that a long good past does not outweigh a bad present for long."""
BOLDEST = 0.9
"""A bet never risks more than this part of its wealth on one request."""


@dataclass
class Wealth:
    """One metric's evidence. `against` speaks for rolling back, `behind` for promoting."""

    budget: float
    """The part of the whole budget of 1 that this metric may ever stake."""
    since: int = 0
    """Canary requests seen when it began."""
    spent: float = 0.0
    against: list[float] = field(default_factory=list)
    """Wealth of each roll-back bet, stakes included; fair as long as the canary is within the limit."""
    behind: list[float] = field(default_factory=list)
    """Log wealth of each promote bet, from 0; fair as long as the canary is beyond the limit."""
    highest: float = HIGHEST_LOG
    """Where each log of `behind` is cut."""
    total: float = 0.0
    """Of the roll-back bets together."""

    @property
    def log_behind(self) -> float:
        """Log of the promote bets' mean wealth."""
        if not self.behind:
            return 0.0
        top = max(self.behind)
        return top + math.log(sum(math.exp(log - top) for log in self.behind) / len(self.behind))

    def is_behind(self, needed: float) -> bool:
        """Whether the promote bets' log wealth is `needed`; quicker than to work it out."""
        return bool(self.behind) and max(self.behind) >= needed and self.log_behind >= needed

    def stake(self, seen: int, odds: Sequence[float]) -> None:
        """Puts fresh money on the roll-back bets, divided as `odds`, before the look that it is staked on.

        seen: canary requests before that look. What is staked over a whole life is at most `budget`.
        """
        if not self.against:
            self.against = [0.0] * len(odds)
        due = self.budget * released(seen - self.since) - self.spent
        if due <= 0:
            return
        self.spent += due
        for i, part in enumerate(odds):
            self.against[i] += due * part
        self.total += due

    def grow(self, against: Sequence[float], behind: Sequence[float], power: float = 1.0) -> None:
        """Applies a look's log factors. A power of 0–1 tones evidence down: a fair game stays fair (Jensen)."""
        try:
            grown = [wealth * math.exp(power * log) for wealth, log in zip(self.against, against, strict=True)]
        except OverflowError:
            grown = [
                wealth * math.exp(min(power * log, 300.0)) for wealth, log in zip(self.against, against, strict=True)
            ]
        self.total = math.fsum(grown)
        if self.total > HIGHEST_WEALTH:
            grown = [min(HIGHEST_WEALTH, wealth) for wealth in grown]
            self.total = math.fsum(grown)
        self.against = grown
        before, highest = self.behind or [0.0] * len(behind), self.highest
        self.behind = [
            sum_of_logs if (sum_of_logs := so_far + power * log) < highest else highest
            for so_far, log in zip(before, behind, strict=True)
        ]


@lru_cache(4096)
def released(seen: int) -> float:
    """The part of a budget that may be at stake `seen` canary requests after its beginning; rises from START to 1."""
    return 1.0 - (1.0 - START) / (1.0 + math.log1p(max(0, seen) / PACE))


@dataclass
class Recent:
    """A ratio that forgets, with a prior that never weighs less than at the start."""

    top: float
    bottom: float

    @property
    def value(self) -> float:
        return self.top / self.bottom

    def add(self, top: float, bottom: float, half_life: float, prior_top: float, prior_bottom: float) -> None:
        """Adds `top` over `bottom`; the half-life is in units of `bottom`."""
        if bottom <= 0:
            return
        kept = 0.5 ** (bottom / half_life)
        self.top = self.top * kept + top
        self.bottom = self.bottom * kept + bottom
        if self.bottom < prior_bottom:
            self.top += (prior_bottom - self.bottom) * prior_top / prior_bottom
            self.bottom = prior_bottom
