"""Closing looks: the bets on what both arms did with the requests that arrived in them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

from llmgwd.verdict.counts import ArmCounts
from llmgwd.verdict.evidence import SHARES, TIMES, WARM_UP, Evidence, OpenLook, Pair, side_of
from llmgwd.verdict.limits import Metric
from llmgwd.verdict.scale import steps_within
from llmgwd.verdict.shares import DOWN, LEAST_STABLE, ODDS, ShareBets, absolute_bets, share_bets, share_logs
from llmgwd.verdict.times import RANK_ODDS, TAIL_ODDS, Ranks, rank_logs, sums_of, tail_logs

LONGEST_ASIDE = 20
"""Looks for which those without a canary request may wait for one that has."""

HITS: Mapping[Metric, Callable[[ArmCounts], int]] = {
    Metric.BAD_ANSWERS: attrgetter("bad"),
    Metric.LENGTH_LIMITED: attrgetter("length_limited"),
    Metric.DEGENERATE: attrgetter("degenerate"),
    Metric.REJECTED: attrgetter("rejected"),
}
TIMES_OF: Mapping[Metric, Callable[[ArmCounts], dict[int, int]]] = {
    Metric.TTFT: attrgetter("ttft"),
    Metric.SPEED: attrgetter("token_time"),
}


def settle(evidence: Evidence, looks: Iterable[OpenLook], now_look: int, *, stable_down: bool = False) -> None:
    """Closes `looks`, which must be among `evidence.open`, in the order given. None: tells whether stable is down.

    now_look: the newest look that can hold a request by now; stable_down: stable has no ready replica.
    """
    if evidence.ended >= WARM_UP:
        # The smaller, lest a clock that is set back leaves times unjudged until it has caught up.
        evidence.warm_from = min(now_look + 1, evidence.warm_from or now_look + 1)
    _tell_whether_down(evidence, stable_down)
    if evidence.first is not None:
        evidence.arrivals.pass_to(now_look, evidence.first)
    for look in looks:
        evidence.open.remove(look)
        evidence.arrivals.add(look.canary.ended)
        if look.canary.ended or look.canary.ttft:
            _close(evidence, _with_aside(evidence, look, stable_down), stable_down)
        else:
            _put_aside(evidence, look, stable_down)


def _put_aside(evidence: Evidence, look: OpenLook, stable_down: bool) -> None:
    """Keeps a look without a canary request for the next that has one: on its own it moves next to nothing."""
    aside = evidence.aside
    # Far apart also in the other direction: the clock was set back.
    if aside and (not _are_alike(aside, look) or abs(look.number - aside.number) >= LONGEST_ASIDE):
        _close(evidence, aside, stable_down)
        aside = None
    if aside:
        aside.stable.add(look.stable)
    else:
        evidence.aside = look


def _with_aside(evidence: Evidence, look: OpenLook, stable_down: bool) -> OpenLook:
    """The look with what was put aside; where that was split or is judged otherwise, it is closed by itself."""
    aside, evidence.aside = evidence.aside, None
    if aside and _are_alike(aside, look) and _is_warm(evidence, aside) == _is_warm(evidence, look):
        look.stable.add(aside.stable)
    elif aside:
        _close(evidence, aside, stable_down)
    return look


def _are_alike(one: OpenLook, other: OpenLook) -> bool:
    return one.share == other.share and one.not_for == other.not_for


def _tell_whether_down(evidence: Evidence, stable_down: bool) -> None:
    evidence.stable_down = stable_down or evidence.shares[Metric.BAD_ANSWERS].lately.value > DOWN


def _is_warm(evidence: Evidence, look: OpenLook) -> bool:
    return evidence.warm_from is not None and look.number >= evidence.warm_from


def _close(evidence: Evidence, look: OpenLook, stable_down: bool) -> None:
    comparable = 0.0 < look.share < 1.0
    if comparable:
        evidence.share = look.share
    evidence.has_all = look.share >= 1.0
    _tell_whether_down(evidence, stable_down)
    for metric in SHARES:
        if comparable or speaks_alone(metric, look.share):
            _close_share(evidence, metric, look)
    if comparable and _is_warm(evidence, look) and not evidence.stable_down:
        for metric in TIMES:
            _close_times(evidence, metric, look)
    _learn(evidence, look, stable_down)
    evidence.seen += look.canary.ended


def _learn(evidence: Evidence, look: OpenLook, stable_down: bool) -> None:
    """Of stable, once the look is bet on; what it does while it is down is not what the canary is to be held to."""
    evidence.shares[Metric.BAD_ANSWERS].notice(look.stable.bad, look.stable.ended)
    if stable_down or evidence.shares[Metric.BAD_ANSWERS].lately.value > DOWN:
        return
    for metric in SHARES:
        evidence.shares[metric].learn(HITS[metric](look.stable), look.stable.ended)
    for metric in TIMES:
        stable = side_of(TIMES_OF[metric](look.stable))
        if stable.n:
            evidence.times[metric].learn_times(stable.times, stable.n)


def speaks_alone(metric: Metric, share: float) -> bool:
    """Whether the metric is judged though the canary has all requests: else one that is down would stay."""
    return share >= 1.0 and metric is Metric.BAD_ANSWERS


def bets_on(evidence: Evidence, metric: Metric, share: float) -> ShareBets | None:
    """The bets on a yes/no metric, as long as nothing new is learnt; None: nothing to bet on."""
    points = evidence.limits[metric]
    if points is None or share <= 0.0:
        return None
    record = evidence.shares[metric]
    if evidence.stable_down or share >= 1.0:
        # How often answers are long or refused depends on what is asked: without stable there is nothing to hold to.
        if metric is not Metric.BAD_ANSWERS:
            return None
        return absolute_bets((record.known_centre or 0.0) + points / 100.0)
    if metric is not Metric.BAD_ANSWERS and record.seen < LEAST_STABLE:
        return None
    return share_bets(share, record.centre, points / 100.0)


def _close_share(evidence: Evidence, metric: Metric, look: OpenLook) -> None:
    hits = HITS[metric]
    canary, stable = (hits(look.canary), look.canary.ended), (hits(look.stable), look.stable.ended)
    evidence.life[metric].add_hits(canary, stable)
    bets = bets_on(evidence, metric, look.share) if metric in evidence.wealth and metric not in look.not_for else None
    if bets:
        against, behind = share_logs(bets, canary, stable)
        if not bets.ratio:
            # Without a comparison it can lose what speaks for it, and win nothing.
            behind = [min(0.0, log) for log in behind]
        growth = _bet(evidence, metric, ODDS, against, behind)
        run = evidence.runs[metric]
        if run.goes_on(look.number, growth):
            run.pair.add_hits(canary, stable)


def _close_times(evidence: Evidence, metric: Metric, look: OpenLook) -> None:
    canary, stable = TIMES_OF[metric](look.canary), TIMES_OF[metric](look.stable)
    if not canary and not stable:
        return
    of_look = Pair(side_of(canary), side_of(stable))
    evidence.life[metric].add(of_look)
    ranks, limit = evidence.times[metric].ranks, evidence.limits[metric]
    if ranks and limit is not None:
        limit = 1.0 / limit if metric is Metric.SPEED else limit
        _bet_on_times(evidence, metric, look, ranks, limit, of_look)


def _bet_on_times(
    evidence: Evidence, metric: Metric, look: OpenLook, ranks: Ranks, limit: float, of_look: Pair
) -> None:
    canary, stable = TIMES_OF[metric](look.canary), TIMES_OF[metric](look.stable)
    record, guard = evidence.times[metric], evidence.guards[metric]
    ratio = look.share / (1.0 - look.share)
    most, least = steps_within(limit)
    strict, plain = ranks.levels(canary, most), ranks.levels(stable)
    lenient = strict if least == most else ranks.levels(canary, least)
    overstated = guard.overstated
    if metric in evidence.wealth and metric not in look.not_for:
        logs = rank_logs(record, ratio, strict, lenient, plain)
        growth = _bet(evidence, metric, RANK_ODDS, *logs, 1.0 / overstated)
        if evidence.runs[metric].goes_on(look.number, growth):
            evidence.runs[metric].pair.add(of_look)
    if metric is Metric.TTFT and Metric.TTFT_P95 in evidence.wealth and Metric.TTFT_P95 not in look.not_for:
        # A drift moves the tail's share by less, in units of its own chance.
        power = 1.0 / (1.0 + 0.35 * (overstated - 1.0))
        growth = _bet(evidence, Metric.TTFT_P95, TAIL_ODDS, *tail_logs(record, ratio, strict, lenient, plain), power)
        if evidence.runs[Metric.TTFT_P95].goes_on(look.number, growth):
            evidence.runs[Metric.TTFT_P95].pair.add(of_look)
    of_plain = sums_of(plain)
    record.learn_scores(of_plain)
    guard.see(look.number, evidence.look_s, sums_of(strict), of_plain)


def _bet(
    evidence: Evidence,
    metric: Metric,
    odds: Sequence[float],
    against: Sequence[float],
    behind: Sequence[float],
    power: float = 1.0,
) -> float:
    """Plays a look's bets; the log growth of the wealth against the canary."""
    wealth = evidence.wealth[metric]
    wealth.stake(evidence.seen, odds)
    before = wealth.total
    wealth.grow(against, behind, power)
    return math.log(wealth.total / before) if before > 0.0 and wealth.total > 0.0 else 0.0
