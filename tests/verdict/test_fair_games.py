"""The promise, exactly: over all outcomes the wealth's expectation is at most what was staked."""

import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgwd.verdict.counts import ArmCounts
from llmgwd.verdict.evidence import add_canary, add_stable, begin
from llmgwd.verdict.limits import Metric
from llmgwd.verdict.scale import steps_within
from llmgwd.verdict.settle import settle
from llmgwd.verdict.shares import absolute_bets, early_logs, share_bets, share_logs
from llmgwd.verdict.times import Ranks, TimesRecord, rank_logs, sums_of, tail_logs

SHARES = (0.001, 0.05, 0.1, 0.25, 0.5, 0.9)
ROUNDING = 1e-9
NOBODY = (0, 0)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("margin", [0.0, 0.001, 0.01, 0.05, 0.5])
@pytest.mark.parametrize("centre", [0.0, 0.005, 0.1, 0.4])
def test_one_request_is_a_fair_bet_on_shares_whatever_is_believed_of_stable(
    share: float, margin: float, centre: float
) -> None:
    bets = share_bets(share, centre, margin)
    assert bets is not None
    # `centre` is what is believed of stable; `rate` is what it is.
    for rate in (0.0, 0.005, 0.1, 0.5 - margin / 2):
        at_limit = max(rate + margin, rate + bets.bar - bets.centre)
        against: list[float] = [0.0] * len(bets.against)
        behind: list[float] = [0.0] * len(bets.behind)
        for chance, canary, stable in one_request(share, at_limit, rate):
            up, down = share_logs(bets, canary, stable)
            against = [total + chance * math.exp(log) for total, log in zip(against, up, strict=True)]
            behind = [total + chance * math.exp(log) for total, log in zip(behind, down, strict=True)]
        assert max(against) <= 1 + ROUNDING
        assert max(behind) <= 1 + ROUNDING


def one_request(
    share: float, canary_rate: float, stable_rate: float
) -> Iterator[tuple[float, tuple[int, int], tuple[int, int]]]:
    yield share * canary_rate, (1, 1), NOBODY
    yield share * (1 - canary_rate), (0, 1), NOBODY
    yield (1 - share) * stable_rate, NOBODY, (1, 1)
    yield (1 - share) * (1 - stable_rate), NOBODY, (0, 1)


@pytest.mark.parametrize("others", [1, 3, 9, 19])
def test_a_quota_of_one_canary_request_in_so_many_is_fair_too(others: int) -> None:
    bets = share_bets(1 / (1 + others), 0.01, 0.01)
    assert bets is not None
    for rate in (0.0, 0.01, 0.2):
        for size in (0, 1, 2, 3):
            factor = 0.0
            for chance, bad in ((rate + 0.01, 1), (1 - rate - 0.01, 0)):
                factor += chance * math.exp(share_logs(bets, (bad, 1), NOBODY)[0][size])
            stable = sum(
                chance * math.exp(share_logs(bets, NOBODY, (bad, 1))[0][size])
                for chance, bad in ((rate, 1), (1 - rate, 0))
            )
            assert factor * stable**others <= 1 + ROUNDING


@pytest.mark.parametrize("bar", [0.001, 0.01, 0.2])
def test_alone_the_canary_plays_a_fair_game_against_the_bar(bar: float) -> None:
    bets = absolute_bets(bar)
    assert bets is not None
    for size in range(len(bets.against)):
        mean = bar * math.exp(share_logs(bets, (1, 1), (5, 5))[0][size])
        mean += (1 - bar) * math.exp(share_logs(bets, (0, 1), (5, 5))[0][size])
        assert mean <= 1 + ROUNDING


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.03, 1.2, 1.25, 2.0])
@pytest.mark.parametrize("law", [{0: 1.0}, {-40: 0.3, 0: 0.5, 3: 0.2}, {8 * k: 0.1 for k in range(-5, 5)}], ids=len)
def test_one_request_is_a_fair_bet_on_times_whatever_is_remembered_of_stable(
    share: float, ratio: float, law: dict[int, float]
) -> None:
    record = TimesRecord()
    record.learn_times({-4: 4, 0: 29, 5: 7}, 40)
    record.learn_scores(sums_of([20] * 3 + [50] * 9 + [99]))
    ranks = Ranks(record.reference)
    most, least = steps_within(ratio)
    odds = share / (1 - share)
    for game in (rank_logs, tail_logs):
        # Within the limit a canary time is at most `most` cells above stable's; beyond it, at least `least`.
        for moved, side in ((most, 0), (most - 1, 0), (least, 1), (least + 1, 1)):
            means: dict[int, float] = {}
            for index, chance in law.items():
                of_canary = game(
                    record, odds, ranks.levels({index + moved: 1}, most), ranks.levels({index + moved: 1}, least), []
                )
                of_stable = game(record, odds, [], [], ranks.levels({index: 1}))
                for i, (ours, theirs) in enumerate(zip(of_canary[side], of_stable[side], strict=True)):
                    mean = share * math.exp(ours) + (1 - share) * math.exp(theirs)
                    means[i] = means.get(i, 0.0) + chance * mean
            assert max(means.values()) <= 1 + ROUNDING


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("points", [0.0, 1.0, 10.0])
def test_the_whole_wealth_is_on_average_no_more_than_its_budget(share: float, points: float) -> None:
    """Every sequence of four looks with one request each, through the judge itself."""
    rate = 0.3
    limits = dict.fromkeys(("ttft", "speed", "length_limited", "degenerate", "rejected"))
    steps = list(one_request(share, rate + points / 100, rate))
    staked = grown = 0.0
    for path in itertools.product(steps, repeat=4):
        evidence = begin({**limits, "bad_answers": points})
        chance = 1.0
        for look, (part, canary, stable) in enumerate(path):
            chance *= part
            add_canary(evidence, look, share, ArmCounts(arrived=canary[1], ended=canary[1], bad=canary[0]))
            add_stable(evidence, look, share, ArmCounts(arrived=stable[1], ended=stable[1], bad=stable[0]))
            settle(evidence, list(evidence.open), look)
        wealth = evidence.wealth[Metric.BAD_ANSWERS]
        staked += chance * wealth.total
        grown += chance * math.exp(wealth.log_behind)
    assert staked <= 1 + ROUNDING
    assert grown <= 1 + ROUNDING


@given(
    share=st.sampled_from(SHARES),
    canary=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    canary_running=st.lists(st.booleans(), max_size=10),
    stable=st.tuples(st.integers(0, 20), st.integers(0, 40)),
    stable_running=st.integers(0, 20),
)
def test_an_early_look_shows_no_more_than_closing_it_will_if_stables_rest_is_good(
    share: float,
    canary: tuple[int, int],
    canary_running: list[bool],
    stable: tuple[int, int],
    stable_running: int,
) -> None:
    bets = share_bets(share, 0.02, 0.01)
    assert bets is not None
    ended = canary[0] + canary[1]
    early = early_logs(bets, (canary[0], ended + len(canary_running)), (stable[0], sum(stable)))
    closed, _ = share_logs(
        bets,
        (canary[0] + sum(canary_running), ended + len(canary_running)),
        (stable[0], sum(stable) + stable_running),
    )
    assert all(now <= later + ROUNDING for now, later in zip(early, closed, strict=True))
