"""How fast evidence for promoting will grow if the canary goes on as it has; what is still needed follows from it."""

from collections.abc import Mapping
from operator import add

from llmgwd.verdict.evidence import SHARES, Evidence
from llmgwd.verdict.limits import Metric, limit_of
from llmgwd.verdict.scale import FINE_BITS, steps_within
from llmgwd.verdict.settle import bets_on
from llmgwd.verdict.shares import share_logs
from llmgwd.verdict.times import LEVELS, Ranks, rank_logs, tail_logs

LIKE_STABLE = 100.0
"""Requests that the guess "as stable" weighs beside what the canary has shown."""


def pace(evidence: Evidence, metric: Metric) -> float | None:
    """Log growth of the best promote bet by canary request; None while nothing can be said."""
    if evidence.share is None:
        return None
    return (
        _of_share(evidence, metric, evidence.share) if metric in SHARES else _of_times(evidence, metric, evidence.share)
    )


def _of_share(evidence: Evidence, metric: Metric, share: float) -> float | None:
    bets = bets_on(evidence, metric, share)
    if bets is None or not bets.ratio:
        return None
    shown = evidence.life[metric].canary
    rate = (shown.hits + LIKE_STABLE * bets.centre) / (shown.n + LIKE_STABLE)
    _, behind = share_logs(bets, (rate, 1.0), (bets.centre / bets.ratio, 1.0 / bets.ratio))
    return max(behind)


def _of_times(evidence: Evidence, metric: Metric, share: float) -> float | None:
    name = limit_of(metric)
    record = evidence.times[Metric(name)]
    ranks, limit = record.ranks, evidence.limits[name]
    if ranks is None or limit is None:
        return None
    ratio = share / (1.0 - share)
    _, least = steps_within(1.0 / limit if metric is Metric.SPEED else limit)
    shown = evidence.life[name].canary
    expected = {index: LIKE_STABLE * weight / record.weight for index, weight in record.reference.items()}
    for index, count in shown.times.items():
        expected[index] = expected.get(index, 0.0) + count
    logs = tail_logs if metric is Metric.TTFT_P95 else rank_logs
    canary = _by_level(ranks, expected, least, 1.0 / (shown.n + LIKE_STABLE))
    stable = _by_level(ranks, record.reference, 0, 1.0 / (ratio * record.weight))
    growth: list[float] = []
    for level in range(LEVELS):
        _, of_canary = logs(record, ratio, (), [level], ())
        _, of_stable = logs(record, ratio, (), (), [level])
        both = [
            canary[level] * ours + stable[level] * theirs for ours, theirs in zip(of_canary, of_stable, strict=True)
        ]
        growth = list(map(add, growth, both)) if growth else both
    return max(growth) / evidence.guards[Metric(name)].overstated


def _by_level(ranks: Ranks, buckets: Mapping[int, float], down: int, scale: float) -> list[float]:
    """The weight, times `scale`, of times in `sketch` buckets by level, each taken at its bucket's middle."""
    middle, weights = 1 << (FINE_BITS - 1), [0.0] * LEVELS
    for index, weight in buckets.items():
        weights[ranks.level((index << FINE_BITS) + middle - down)] += weight * scale
    return weights
