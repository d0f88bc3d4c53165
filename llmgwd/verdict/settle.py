"""Closing looks: the bets on what both arms did with the requests that arrived in them."""

import math
from collections.abc import Callable, Iterable, Mapping

from llmgwd.verdict.counts import ArmCounts
from llmgwd.verdict.evidence import SHARES, TIMES, WARM_UP, Evidence, OpenLook, Pair, Side
from llmgwd.verdict.limits import Metric
from llmgwd.verdict.scale import add_coarse, steps_within
from llmgwd.verdict.shares import LEAST_STABLE, ODDS, ShareBets, ShareRecord, absolute_bets, share_bets, share_logs
from llmgwd.verdict.times import RANK_ODDS, TAIL_ODDS, Ranks, Tally, TimesRecord, rank_logs, ranks_of, tail_logs

RATE_LOOKS = 60.0
"""Looks over which the rate of canary requests is averaged."""

Game = Callable[[TimesRecord, float, Tally, Tally, Tally], tuple[list[float], list[float]]]
"""Log factors of the roll-back and promote bets from a look's canary (strict, lenient) and stable times."""

HITS: Mapping[Metric, Callable[[ArmCounts], int]] = {
    Metric.BAD_ANSWERS: lambda counts: counts.bad,
    Metric.LENGTH_LIMITED: lambda counts: counts.length_limited,
    Metric.DEGENERATE: lambda counts: counts.degenerate,
    Metric.REJECTED: lambda counts: counts.rejected,
}
TIMES_OF: Mapping[Metric, Callable[[ArmCounts], dict[int, int]]] = {
    Metric.TTFT: lambda counts: counts.ttft,
    Metric.SPEED: lambda counts: counts.token_time,
}


def settle(evidence: Evidence, looks: Iterable[OpenLook], now_look: int, *, stable_down: bool = False) -> None:
    """Closes `looks`, which must be among `evidence.open`, in the order given.

    now_look: the newest look that can hold a request by now; stable_down: stable has no ready replica.
    """
    if evidence.warm_from is None and evidence.ended >= WARM_UP:
        evidence.warm_from = now_look + 1
    for look in looks:
        evidence.open.remove(look)
        _close(evidence, look, stable_down)


def _close(evidence: Evidence, look: OpenLook, stable_down: bool) -> None:
    comparable = 0.0 < look.share < 1.0
    if comparable:
        evidence.share = look.share
    lately = evidence.shares[Metric.BAD_ANSWERS].lately.value
    evidence.stable_down = stable_down or lately > 0.5
    for metric in SHARES:
        _close_share(evidence, metric, look, comparable)
    warm = evidence.warm_from is not None and look.number >= evidence.warm_from
    for metric in TIMES:
        _close_times(evidence, metric, look, comparable and warm and not evidence.stable_down)
    evidence.seen += look.canary.ended
    evidence.rate += (look.canary.ended - evidence.rate) / RATE_LOOKS


def bets_on(evidence: Evidence, metric: Metric, share: float) -> ShareBets | None:
    """The bets on a yes/no metric, as long as nothing new is learnt; None: nothing to bet on."""
    points = evidence.limits[metric]
    if points is None or not 0.0 < share < 1.0:
        return None
    if evidence.stable_down:
        # How often answers are long or refused depends on what is asked: without stable there is nothing to hold to.
        return absolute_bets(points / 100.0) if metric is Metric.BAD_ANSWERS else None
    record = evidence.shares[metric]
    if metric is not Metric.BAD_ANSWERS and record.seen < LEAST_STABLE:
        return None
    return share_bets(share, record.rate.value, points / 100.0)


def _close_share(evidence: Evidence, metric: Metric, look: OpenLook, comparable: bool) -> None:
    hits = HITS[metric]
    canary = (hits(look.canary), look.canary.ended)
    stable = (hits(look.stable), look.stable.ended)
    record: ShareRecord = evidence.shares[metric]
    wealth = evidence.wealth.get(metric)
    bets = bets_on(evidence, metric, look.share) if wealth and comparable else None
    pair = Pair(Side(canary[1], canary[0]), Side(stable[1], stable[0]))
    if comparable:
        evidence.life[metric].add(pair)
    if wealth and bets:
        wealth.stake(evidence.seen, ODDS)
        before = wealth.total
        wealth.grow(*share_logs(bets, canary, stable))
        evidence.runs[metric].add(look.number, _growth(before, wealth.total), pair)
    record.learn(*stable)


def _close_times(evidence: Evidence, metric: Metric, look: OpenLook, judged: bool) -> None:
    canary, stable = TIMES_OF[metric](look.canary), TIMES_OF[metric](look.stable)
    if not canary and not stable:
        return
    record = evidence.times[metric]
    limit = evidence.limits[metric]
    ranks = ranks_of(record) if judged and limit is not None else None
    if judged:
        pair = Pair(Side(sum(canary.values())), Side(sum(stable.values())))
        add_coarse(pair.canary.times, canary)
        add_coarse(pair.stable.times, stable)
        evidence.life[metric].add(pair)
        if ranks and limit is not None:
            _bet_on_times(evidence, metric, look, pair, ranks, 1.0 / limit if metric is Metric.SPEED else limit)
    if stable:
        record.learn_times(stable)


def _bet_on_times(evidence: Evidence, metric: Metric, look: OpenLook, pair: Pair, ranks: Ranks, limit: float) -> None:
    canary, stable = TIMES_OF[metric](look.canary), TIMES_OF[metric](look.stable)
    record, guard = evidence.times[metric], evidence.guards[metric]
    ratio = look.share / (1.0 - look.share)
    most, least = steps_within(limit)
    strict, plain = ranks.tally(canary, most), ranks.tally(stable)
    lenient = strict if least == most else ranks.tally(canary, least)
    overstated = guard.overstated
    games: list[tuple[Metric, Game, tuple[float, ...], float]] = [(metric, rank_logs, RANK_ODDS, 1.0 / overstated)]
    if metric is Metric.TTFT:
        # A drift moves the tail's share by less, in units of its own chance.
        games.append((Metric.TTFT_P95, tail_logs, TAIL_ODDS, 1.0 / (1.0 + 0.35 * (overstated - 1.0))))
    for name, logs, odds, power in games:
        wealth = evidence.wealth.get(name)
        if wealth is None:
            continue
        wealth.stake(evidence.seen, odds)
        before = wealth.total
        wealth.grow(*logs(record, ratio, strict, lenient, plain), power)
        evidence.runs[name].add(look.number, _growth(before, wealth.total), pair)
    record.learn_scores(plain)
    guard.see(look.number, evidence.look_s, strict, plain)


def _growth(before: float, after: float) -> float:
    return math.log(after / before) if before > 0.0 and after > 0.0 else 0.0
