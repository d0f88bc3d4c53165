"""All that is known about one canary: its evidence by metric, the looks that are still open, and what both arms did.

Plain data of constant size, one for a canary's whole life; it is stored with the canary, since a restart must not renew
the error budget. New weights are a new life and begin with new evidence.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgwd.verdict.counts import ArmCounts, add_cells
from llmgwd.verdict.guard import Guard
from llmgwd.verdict.limits import Limits, Metric, complete, limit_of, weights
from llmgwd.verdict.load import Load
from llmgwd.verdict.metric_figures import MetricFigures
from llmgwd.verdict.rate import Rate
from llmgwd.verdict.scale import add_coarse
from llmgwd.verdict.shares import RARE, UNKNOWN, ShareRecord, unseen
from llmgwd.verdict.times import TimesRecord
from llmgwd.verdict.wealth import Wealth

ALPHA = 0.05
"""Most a canary within all limits risks being rolled back, over its whole life."""
ALPHA_PROMOTE = 0.01
"""Most a canary beyond a limit has of a chance to be found fine, over its whole life."""
LOOK_S = 30.0
LATEST_S = 120.0
"""A look is closed this long after its end though some of its requests still run."""
WARM_UP = 20
"""Canary answers that must have come back before a request's times are judged."""
MOST_OPEN = 64
"""Open looks that are kept; the oldest is closed when there are more."""

TIMES = (Metric.TTFT, Metric.SPEED)
"""Metrics of times that keep a record; the 95th percentile shares that of its limit."""
SHARES = (Metric.BAD_ANSWERS, Metric.LENGTH_LIMITED, Metric.DEGENERATE, Metric.REJECTED)


@dataclass
class Side:
    """One arm's figures for one limit: `hits` of `n` for a yes/no metric, `sketch` buckets of `n` times."""

    n: int = 0
    hits: int = 0
    times: dict[int, int] = field(default_factory=dict)

    def add(self, other: "Side") -> None:
        self.n += other.n
        self.hits += other.hits
        if other.times:
            add_cells(self.times, other.times)


def side_of(times: Mapping[int, int]) -> Side:
    """Of times in fine cells."""
    side = Side(sum(times.values()))
    add_coarse(side.times, times)
    return side


@dataclass
class Pair:
    canary: Side = field(default_factory=Side)
    stable: Side = field(default_factory=Side)

    def add(self, other: "Pair") -> None:
        self.canary.add(other.canary)
        self.stable.add(other.stable)

    def add_hits(self, canary: tuple[int, int], stable: tuple[int, int]) -> None:
        """Of a yes/no metric; each (bad, requests)."""
        for side, (bad, requests) in ((self.canary, canary), (self.stable, stable)):
            side.hits += bad
            side.n += requests


@dataclass
class Run:
    """The figures since the present evidence against the canary began to gather."""

    log: float = 0.0
    """Log growth since then."""
    began: int | None = None
    """Look in which it began."""
    pair: Pair = field(default_factory=Pair)

    def goes_on(self, look: int, log: float) -> bool:
        """Adds a look's log growth; whether evidence still gathers, so that the look's figures belong to `pair`."""
        if self.log + log <= 0.0:
            self.log = 0.0
            return False
        if self.log <= 0.0:
            self.log, self.began, self.pair = 0.0, look, Pair()
        self.log += log
        return True


@dataclass
class Final:
    """A verdict of worse, as it was spoken."""

    worse_by: list[Metric]
    sentence: str
    figures: list[MetricFigures] = field(default_factory=list)
    """Every metric's when it was spoken, which the sentence is about."""


@dataclass
class OpenLook:
    """What both arms did so far with the requests that arrived in one look under one share."""

    number: int
    """Arrival time // length of a look."""
    share: float
    """Of requests that go to the canary, 0–1."""
    canary: ArmCounts = field(default_factory=ArmCounts)
    stable: ArmCounts = field(default_factory=ArmCounts)
    not_for: list[Metric] = field(default_factory=list)
    """Metrics whose limit was changed when something of it was known already: it is not bet on by them."""


@dataclass
class Evidence:
    """See the module. Dictionaries are keyed by the metrics' names, `life` by the limits'."""

    limits: dict[str, float | None]
    look_s: float = LOOK_S
    alpha: float = ALPHA
    alpha_promote: float = ALPHA_PROMOTE
    wealth: dict[Metric, Wealth] = field(default_factory=dict)
    budgets: dict[Metric, float] = field(default_factory=dict)
    """The budget each metric was given last; kept while its limit is off."""
    alphas_promote: dict[Metric, float] = field(default_factory=dict)
    """Of those whose limit was changed, what is left of `alpha_promote`."""
    shares: dict[Metric, ShareRecord] = field(default_factory=dict)
    times: dict[Metric, TimesRecord] = field(default_factory=dict)
    guards: dict[Metric, Guard] = field(default_factory=dict)
    runs: dict[Metric, Run] = field(default_factory=dict)
    life: dict[str, Pair] = field(default_factory=dict)
    open: list[OpenLook] = field(default_factory=list)
    aside: OpenLook | None = None
    """Closed looks in which the canary had no request, as one, until they are bet on with one in which it has."""
    seen: int = 0
    """Canary requests in closed looks."""
    ended: int = 0
    """Canary requests that have ended or were given up, in open looks too."""
    warm_from: int | None = None
    """First look whose times are judged; None while the canary warms up."""
    first: int | None = None
    """Look that the first counts were for."""
    share: float | None = None
    """The last that was compared under."""
    arrivals: Rate = field(default_factory=Rate)
    """Canary requests by look."""
    canary_keys: int = 0
    stable_keys: int = 0
    left_out: list[int] = field(default_factory=lambda: [0, 0])
    """Requests of sessions that had more than count, canary and stable."""
    cancelled: list[int] = field(default_factory=lambda: [0, 0])
    """Requests whose client left, canary and stable."""
    arrived: list[int] = field(default_factory=lambda: [0, 0])
    """Requests that came, canary and stable."""
    textless: list[int] = field(default_factory=lambda: [0, 0])
    """Of those: the ones of a kind whose answers never have text."""
    load: Load = field(default_factory=Load)
    stable_down: bool = False
    """Whether stable was down at the last look."""
    final: Final | None = None
    """Set once the canary was found worse: that is final, whatever comes later."""
    has_all: bool = False
    """Whether the canary had all requests in the last look that was closed."""


def begin(
    limits: Limits, *, look_s: float = LOOK_S, alpha: float = ALPHA, alpha_promote: float = ALPHA_PROMOTE
) -> Evidence:
    """The evidence of a canary that has had no request. `limits` overrides the defaults; LimitError if it cannot be."""
    evidence = Evidence(complete(limits), look_s=look_s, alpha=alpha, alpha_promote=alpha_promote)
    for metric, budget in weights(evidence.limits).items():
        evidence.wealth[metric] = Wealth(budget)
        evidence.budgets[metric] = budget
        evidence.runs[metric] = Run()
    for metric in SHARES:
        evidence.shares[metric] = unseen(RARE if metric is Metric.BAD_ANSWERS else UNKNOWN)
    for metric in TIMES:
        evidence.times[metric] = TimesRecord()
        evidence.guards[metric] = Guard()
    for name in evidence.limits:
        evidence.life[name] = Pair()
    return evidence


def add_canary(evidence: Evidence, look: int, share: float, counts: ArmCounts) -> None:
    """Adds what a worker counted on the canary; `share` (0–1) is the one its requests were split by."""
    _open(evidence, look, share).canary.add(counts)
    # A client that gave up waiting has shown as much as an answer: else one that hangs would warm up for ever.
    evidence.ended += counts.ended + counts.cancelled
    evidence.canary_keys += counts.keys
    evidence.left_out[0] += counts.left_out
    evidence.cancelled[0] += counts.cancelled
    evidence.arrived[0] += counts.arrived
    evidence.textless[0] += counts.textless


def add_stable(evidence: Evidence, look: int, share: float, counts: ArmCounts) -> None:
    """The same for stable's requests while the model has the canary."""
    _open(evidence, look, share).stable.add(counts)
    evidence.stable_keys += counts.keys
    evidence.left_out[1] += counts.left_out
    evidence.cancelled[1] += counts.cancelled
    evidence.arrived[1] += counts.arrived
    evidence.textless[1] += counts.textless


def change_limits(evidence: Evidence, limits: Limits) -> tuple[str, ...]:
    """Puts `limits` (only those named) on a running canary and returns the names of those that differ.

    Evidence against a limit says nothing about another: a changed one begins anew, with half of both its error budgets,
    so that changing it again and again gains nothing; and with the next look, since who changes it has seen this one.
    """
    new = complete({**evidence.limits, **limits})
    changed = tuple(name for name in new if new[name] != evidence.limits[name])
    fresh = weights(complete({}))
    for metric in Metric:
        name = limit_of(metric)
        if name not in changed:
            continue
        evidence.wealth.pop(metric, None)
        evidence.runs[metric] = Run()
        if new[name] is not None:
            budget = evidence.budgets.get(metric, fresh[metric]) / 2
            evidence.budgets[metric] = budget
            evidence.wealth[metric] = Wealth(budget, since=evidence.seen)
            alpha = promote_alpha(evidence, metric) / 2
            evidence.alphas_promote[metric] = alpha
            evidence.wealth[metric].highest += math.log(evidence.alpha_promote / alpha)
        for look in not_bet_on(evidence):
            if metric not in look.not_for:
                look.not_for.append(metric)
    evidence.limits = new
    return changed


def promote_alpha(evidence: Evidence, metric: Metric) -> float:
    """Most a canary beyond this limit has of a chance to be found within it."""
    return evidence.alphas_promote.get(metric, evidence.alpha_promote)


def ripe(evidence: Evidence, now_s: float) -> list[OpenLook]:
    """The looks that can be closed at wall time `now_s`, oldest first.

    A look is closed once it is over and all its requests have ended, or LATEST_S later. A clock that was set back
    leaves looks in the future; they are closed as well.
    """
    looks = sorted(evidence.open, key=_place)
    surplus = len(looks) - MOST_OPEN
    return [look for i, look in enumerate(looks) if i < surplus or _is_over(look, evidence.look_s, now_s)]


def not_bet_on(evidence: Evidence) -> list[OpenLook]:
    """The looks whose counts are in no bet yet."""
    return [*evidence.open, evidence.aside] if evidence.aside else evidence.open


def look_at(evidence: Evidence, now_s: float) -> int:
    """The number of the look that a request belongs to which arrives at wall time `now_s`."""
    return int(now_s // evidence.look_s)


def _is_over(look: OpenLook, look_s: float, now_s: float) -> bool:
    past_s = now_s - (look.number + 1) * look_s
    if look.canary.running or look.stable.running:
        return past_s >= LATEST_S or past_s < -LATEST_S - look_s
    return past_s >= 0 or past_s < -LATEST_S - look_s


def _place(look: OpenLook) -> tuple[int, float]:
    return look.number, look.share


def _open(evidence: Evidence, number: int, share: float) -> OpenLook:
    for look in evidence.open:
        if look.number == number and look.share == share:
            return look
    look = OpenLook(number, share)
    evidence.open.append(look)
    if evidence.first is None:
        evidence.first = number
    return look
