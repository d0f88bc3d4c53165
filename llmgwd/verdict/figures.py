"""What the judge knows, metric by metric, as it is shown: counts, values, intervals, limits, what is still needed."""

import math
from dataclasses import dataclass

from llmgwd.verdict import intervals
from llmgwd.verdict.counts import ArmCounts
from llmgwd.verdict.decision import Decision, State
from llmgwd.verdict.evidence import SHARES, Evidence, Pair, Side, not_bet_on, promote_alpha
from llmgwd.verdict.limits import Metric, limit_of
from llmgwd.verdict.metric_figures import ABSENT, OFF, WITHIN, MetricFigures
from llmgwd.verdict.pace import pace
from llmgwd.verdict.scale import spread_quantile
from llmgwd.verdict.settle import HITS, speaks_alone


@dataclass(frozen=True)
class Need:
    """What a verdict of `fine` still takes; None: it cannot be said."""

    requests: int | None
    seconds: float | None


def figures_of(evidence: Evidence, metric: Metric, decision: Decision) -> MetricFigures:
    """One metric over the canary's life; of one that shows it worse, since the evidence against it began to gather."""
    # Of several that show it together none is known to be beyond its limit, so that nothing is cut from its interval.
    is_ruled_out = decision.worse_by == (metric,)
    if metric in decision.worse_by:
        run = evidence.runs[metric]
        began = run.began if run.log > 0.0 else None
        pair = _with_open(evidence, metric, run.pair if began is not None else Pair())
        if began is not None and evidence.first is not None and began > evidence.first:
            return _figures(evidence, metric, State.WORSE, pair, began, is_ruled_out=is_ruled_out)
    pair = _with_open(evidence, metric, evidence.life[limit_of(metric)])
    state = _state(evidence, metric, decision)
    return _figures(evidence, metric, state, pair, None, is_ruled_out=is_ruled_out or state == WITHIN)


def need(evidence: Evidence, decision: Decision) -> Need:
    """Canary requests until `fine`, if the canary goes on as it has, and the time at today's rate."""
    if decision.state is not State.UNDECIDED:
        return Need(0, 0.0)
    most = 0.0
    for metric in decision.open:
        growth = pace(evidence, metric)
        if growth is None or growth <= 0.0:
            return Need(None, None)
        missing = math.log(1.0 / promote_alpha(evidence, metric)) - evidence.wealth[metric].log_behind
        most = max(most, missing / growth)
    requests = _rounded(most)
    rate = evidence.arrivals.value
    return Need(requests, requests / rate * evidence.look_s if rate > 0.0 else None)


def _state(evidence: Evidence, metric: Metric, decision: Decision) -> str:
    if metric not in evidence.wealth:
        return OFF
    if metric in decision.worse_by:
        return State.WORSE
    if metric in decision.absent:
        return ABSENT
    return State.UNDECIDED if metric in decision.open or decision.state is State.WORSE else WITHIN


def _with_open(evidence: Evidence, metric: Metric, closed: Pair) -> Pair:
    """Adds what has come in of looks that are not bet on to a yes/no metric; of times that is not known."""
    pair = Pair()
    pair.add(closed)
    if metric in SHARES:
        for look in not_bet_on(evidence):
            if 0.0 < look.share < 1.0 or speaks_alone(metric, look.share):
                pair.add(Pair(_side(metric, look.canary), _side(metric, look.stable)))
    return pair


def _side(metric: Metric, counts: ArmCounts) -> Side:
    return Side(counts.ended, HITS[metric](counts))


def _figures(
    evidence: Evidence, metric: Metric, state: str, pair: Pair, began: int | None, *, is_ruled_out: bool
) -> MetricFigures:
    canary, stable = pair.canary, pair.stable
    limit = evidence.limits[limit_of(metric)]
    alpha = evidence.alpha
    if began is not None and evidence.first is not None:
        # The beginning was chosen by looking: each later one that could have been gets its part of alpha.
        looks = began - evidence.first
        alpha /= 2.0 * looks * (looks + 1)
    if metric in SHARES:
        value, stable_value = _share(canary), _share(stable)
        limit = None if limit is None else limit / 100.0
        low, high = intervals.difference_interval((canary.hits, canary.n), (stable.hits, stable.n), alpha)
        ends: intervals.Interval = (low, high)
    else:
        q = 0.95 if metric is Metric.TTFT_P95 else 0.5
        value, stable_value = spread_quantile(canary.times, q), spread_quantile(stable.times, q)
        limit = 1.0 / limit if limit is not None and metric is Metric.SPEED else limit
        ends = _ratio(evidence, metric, pair, alpha)
    low_end, high_end = _agreeing(ends, limit, state) if is_ruled_out else ends
    return MetricFigures(
        metric=metric,
        state=state,
        limit=limit,
        canary_n=canary.n,
        stable_n=stable.n,
        canary_hits=canary.hits,
        stable_hits=stable.hits,
        canary_value=value,
        stable_value=stable_value,
        low=low_end,
        high=high_end,
        since_look=began,
    )


def _ratio(evidence: Evidence, metric: Metric, pair: Pair, alpha: float) -> intervals.Interval:
    if metric is Metric.TTFT_P95:
        return intervals.quotient(
            intervals.quantile_interval(pair.canary.times, 0.95, alpha / 2),
            intervals.quantile_interval(pair.stable.times, 0.95, alpha / 2),
        )
    overstated = evidence.guards[metric].overstated
    return intervals.ratio_interval(pair.canary.times, pair.stable.times, alpha, overstated)


def _agreeing(ends: intervals.Interval, limit: float | None, state: str) -> intervals.Interval:
    """The interval without what the verdict itself has ruled out."""
    low, high = ends
    if limit is not None and state == State.WORSE:
        low = limit if low is None else max(low, limit)
        high = None if high is None else max(high, low)
    if limit is not None and state == WITHIN:
        high = limit if high is None else min(high, limit)
        low = None if low is None else min(low, high)
    return low, high


def _rounded(requests: float) -> int:
    """Up to two digits: it is an estimate."""
    unit: int = 10 ** max(0, len(str(int(requests))) - 2)
    return math.ceil(requests / unit) * unit


def _share(side: Side) -> float | None:
    return side.hits / side.n if side.n else None
