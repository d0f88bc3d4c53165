"""Bets on yes/no metrics: is the canary's share of bad answers more than a margin above stable's?

Per request the wealth is multiplied by

    canary   1 + b · (x - c - margin)
    stable   1 - b · r · (x - c)

x is 1 for a bad answer, else 0; c is stable's recent share and r = share / (1 - share), both fixed before the look.
With the coin that sends a request to the canary with probability `share`, the expectation is
1 + share · b · (canary's rate - stable's rate - margin), at most 1 within the limit, whatever c and b are and whatever
happens to both sides at once.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache

from llmgwd.verdict.wealth import BOLDEST, Recent

PRIOR_HITS, HALF_LIFE = 0.5, 2000.0
RARE, UNKNOWN = 100.0, 20.0
"""Requests that the prior counts for: failures are rare, of the others little is known before stable has shown it."""
DOWN_HALF_LIFE, DOWN_PRIOR = 20.0, 5.0
DOWN = 0.5
"""Stable's share of bad answers, lately, above which it is down."""
LEAST_STABLE = 20
"""Requests of stable before the canary is held to its share alone, or bet on at all by metrics but bad answers."""
ODDS = (0.2, 0.4, 0.2, 0.2)
"""How a stake is divided over the four roll-back bets, from a slight excess to hard down."""
HOPELESS = 0.98
"""A bar above this share cannot be exceeded noticeably: no bets."""


Hits = tuple[float, float]
"""(bad, requests) of one arm."""
PER_CENTRE = 10_000
"""Centres are rounded to this part of 1, so that few canaries' looks need bets of their own."""
KEPT_BETS = 4096


@dataclass
class ShareRecord:
    """What is remembered of stable for one yes/no metric."""

    prior_requests: float
    rate: Recent
    lately: Recent = field(default_factory=lambda: Recent(0.0, DOWN_PRIOR))
    """Over the last few dozen requests: tells when stable is down. Only kept for bad answers."""
    seen: int = 0
    """Requests of stable."""

    @property
    def centre(self) -> float:
        """Stable's recent share, as bets take it."""
        return int(self.rate.value * PER_CENTRE + 0.5) / PER_CENTRE

    @property
    def known_centre(self) -> float | None:
        """The same; None while stable has hardly had a request."""
        return self.centre if self.seen >= LEAST_STABLE else None

    def notice(self, hits: int, requests: int) -> None:
        """Takes what stable did into `lately`."""
        self.lately.add(hits, requests, DOWN_HALF_LIFE, 0.0, DOWN_PRIOR)

    def learn(self, hits: int, requests: int) -> None:
        """Takes what stable did into what it is known for."""
        if requests:
            self.seen += requests
            self.rate.add(hits, requests, HALF_LIFE, PRIOR_HITS, self.prior_requests)


def unseen(prior_requests: float) -> ShareRecord:
    """The record before stable had a request."""
    return ShareRecord(prior_requests, Recent(PRIOR_HITS, prior_requests))


Logs = tuple[float, float, float, float]
"""Log factors of one bet: per bad and per good canary answer, per bad and per good one of stable."""


@dataclass(frozen=True)
class ShareBets:
    """The bets for one look. `absolute` ones leave stable out and hold the canary to `bar` itself."""

    ratio: float
    centre: float
    bar: float
    against: tuple[Logs, ...]
    behind: tuple[Logs, ...]


@lru_cache(KEPT_BETS)
def share_bets(share: float, centre: float, margin: float) -> ShareBets | None:
    """share: of requests that go to the canary, at least 0 and below 1; margin: the limit, as a share.

    None when the bar is so high that nothing can be told.
    """
    r = share / (1.0 - share)
    bar = centre + margin
    if bar >= HOPELESS:
        return None
    bar = max(bar, 1e-6)
    noise = bar * (1.0 - bar) + r * centre * (1.0 - centre)
    boldest = BOLDEST / max(bar, r * (1.0 - centre))
    unit = max(margin, centre / 2, 0.002)
    middle = 0.5 * (1.0 + bar)
    aims = (
        min(bar + 0.5 * unit, middle),
        min(bar + 2.5 * unit, middle),
        min(bar + 8.0 * unit, middle),
        max(0.9, middle),
    )
    against = tuple(bet_logs(min((aim - bar) / noise, boldest), r, centre, bar) for aim in aims)
    timid = BOLDEST / max(1.0 - bar, r * centre)
    edge = max(margin, 0.005) / (bar * (1.0 - bar))
    behind = tuple(bet_logs(-min(size, timid), r, centre, bar) for size in (0.5 * edge, edge, 0.9))
    return ShareBets(r, centre, bar, against, behind)


def absolute_bets(bar: float) -> ShareBets | None:
    """Bets on the canary alone, for while stable is down or has no request: is its share above `bar`?"""
    return share_bets(0.0, 0.0, bar)


def share_logs(bets: ShareBets, canary: Hits, stable: Hits) -> tuple[list[float], list[float]]:
    """Log factors of a look for the roll-back and the promote bets."""
    bad, requests = canary
    stable_bad, stable_requests = stable
    good, stable_good = max(0, requests - bad), max(0, stable_requests - stable_bad)
    return (
        [bad * a + good * b + stable_bad * c + stable_good * d for a, b, c, d in bets.against],
        [bad * a + good * b + stable_bad * c + stable_good * d for a, b, c, d in bets.behind],
    )


def early_logs(bets: ShareBets, canary: Hits, stable: Hits) -> list[float]:
    """Log factors of the roll-back bets in a look that is not closed, all that is unknown taken in the canary's favour.

    Canary requests without an outcome yet count as good, and stable's good answers, which would speak against the
    canary, not at all.
    """
    stable_bad = stable[0]
    return share_logs(bets, canary, (stable_bad, stable_bad))[0]


def bet_logs(size: float, ratio: float, centre: float, bar: float) -> Logs:
    """What a bet of this size, negative to promote, adds to its log wealth; bar: what canary scores are held to."""
    weight = size * ratio
    return (
        math.log1p(size * (1.0 - bar)),
        math.log1p(-size * bar),
        math.log1p(-weight * (1.0 - centre)),
        math.log1p(weight * centre),
    )
