"""The rule: worse, fine, or undecided and why."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from llmgwd.verdict.evidence import SHARES, Evidence, not_bet_on, promote_alpha
from llmgwd.verdict.limits import Metric, limit_of
from llmgwd.verdict.settle import HITS, bets_on
from llmgwd.verdict.shares import ODDS, early_logs
from llmgwd.verdict.wealth import START

LEAST_BAD = 3
"""Canary answers of the bad kind before a yes/no metric can roll back."""
LEAST_TIMED = 10
"""Judged canary times before times can roll back."""
MIN_AGE_S = 1800.0


class State(StrEnum):
    WORSE = "worse"
    FINE = "fine"
    UNDECIDED = "undecided"


class Wait(StrEnum):
    """What a canary that is undecided waits for, besides requests."""

    AGE = "age"
    LOAD = "load"
    STABLE = "stable"
    SHARE = "share"


@dataclass(frozen=True)
class Decision:
    state: State
    worse_by: tuple[Metric, ...] = ()
    """When worse: the metrics that show it, most evidence first; where there are several, none shows it alone."""
    open: tuple[Metric, ...] = ()
    """Metrics that are not found within their limit yet."""
    absent: tuple[Metric, ...] = ()
    """Metrics that no answer of either arm can have."""
    waits: tuple[Wait, ...] = field(default=())

    @property
    def blamed(self) -> Metric | None:
        """The metric with the most evidence against the canary, when worse."""
        return self.worse_by[0] if self.worse_by else None


def decide(evidence: Evidence, age_s: float, *, min_age_s: float = MIN_AGE_S, uneven_load: bool = False) -> Decision:
    """What the evidence shows now; may be asked as often as wished, also right after a bad canary answer.

    age_s: since the canary began to serve; uneven_load: the canary's engine was idle while stable's was full, so that
    its times speak against it only.
    """
    absent = _absent(evidence)
    if evidence.final:
        return Decision(State.WORSE, worse_by=tuple(evidence.final.worse_by), absent=absent)
    present = {metric: _present(evidence, metric) for metric in evidence.wealth}
    # The budgets of all metrics add up to 1, so their sum is one wealth that starts at 1.
    if math.fsum(present.values()) >= 1.0 / evidence.alpha:
        against = {metric: wealth for metric, wealth in present.items() if _enough(evidence, metric)}
        if math.fsum(against.values()) >= 1.0 / evidence.alpha:
            return Decision(State.WORSE, worse_by=_carriers(against, 1.0 / evidence.alpha), absent=absent)
    judged = {metric: evidence.wealth[metric] for metric in present if metric not in absent}
    uneven_load = uneven_load and any(metric not in SHARES for metric in judged)
    unsure = tuple(
        metric
        for metric, wealth in judged.items()
        if not wealth.is_behind(_log_odds(promote_alpha(evidence, metric)))
        or present[metric] > wealth.spent
        or (uneven_load and metric not in SHARES)
    )
    waits = _waits(evidence, age_s < min_age_s, uneven_load)
    if unsure or waits or not judged:
        return Decision(State.UNDECIDED, open=unsure, absent=absent, waits=waits)
    return Decision(State.FINE, absent=absent)


@lru_cache
def _log_odds(alpha: float) -> float:
    """The log wealth that is reached by chance with a probability of at most `alpha`."""
    return -math.log(alpha)


def _carriers(against: Mapping[Metric, float], needed: float) -> tuple[Metric, ...]:
    """The fewest metrics whose wealth makes up `needed` together, the richest first."""
    carriers: list[Metric] = []
    for metric in sorted(against, key=against.__getitem__, reverse=True):
        carriers.append(metric)
        if math.fsum(against[each] for each in carriers) >= needed:
            break
    return tuple(carriers)


def _absent(evidence: Evidence) -> tuple[Metric, ...]:
    """The metrics of times that are judged, when every request of both arms was of a kind that has none.

    By the kind of the requests, never by the want of figures: those may be missing because something is broken.
    """
    if not all(evidence.arrived) or evidence.textless != evidence.arrived:
        return ()
    return tuple(metric for metric in evidence.wealth if metric not in SHARES)


def _waits(evidence: Evidence, young: bool, uneven_load: bool) -> tuple[Wait, ...]:
    waits = []
    if young:
        waits.append(Wait.AGE)
    if uneven_load:
        waits.append(Wait.LOAD)
    if evidence.stable_down:
        waits.append(Wait.STABLE)
    elif evidence.has_all:
        waits.append(Wait.SHARE)
    return tuple(waits)


def _enough(evidence: Evidence, metric: Metric) -> bool:
    """Whether the metric has been seen often enough to roll back."""
    life = evidence.life[limit_of(metric)].canary
    if metric not in SHARES:
        return life.n >= LEAST_TIMED
    return life.hits >= LEAST_BAD or life.hits + _early_hits(evidence, metric) >= LEAST_BAD


def _present(evidence: Evidence, metric: Metric) -> float:
    """The wealth against the canary now; of a yes/no metric with the canary's bad answers in open looks."""
    if evidence.open and metric in SHARES and _early_hits(evidence, metric):
        return _early(evidence, metric)
    return evidence.wealth[metric].total


def _early_hits(evidence: Evidence, metric: Metric) -> int:
    """The canary's in looks that are still open."""
    hits = HITS[metric]
    return sum(hits(look.canary) for look in evidence.open if metric not in look.not_for)


def _early(evidence: Evidence, metric: Metric) -> float:
    """The wealth with what has come in of the looks that are not closed, see `shares.early_logs`."""
    wealth = evidence.wealth[metric]
    stakes = wealth.against or [wealth.budget * START * part for part in ODDS]
    logs = [0.0] * len(stakes)
    for look in not_bet_on(evidence):
        bets = bets_on(evidence, metric, look.share)
        if bets is None or metric in look.not_for:
            continue
        hits = HITS[metric]
        canary = (hits(look.canary), look.canary.ended + look.canary.running)
        for i, log in enumerate(early_logs(bets, canary, (hits(look.stable), look.stable.ended))):
            logs[i] += log
    return math.fsum(stake * math.exp(min(log, 300.0)) for stake, log in zip(stakes, logs, strict=True))
