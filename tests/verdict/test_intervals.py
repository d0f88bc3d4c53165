import math
import random

import pytest

from llmgwd.verdict.intervals import difference_interval, quantile_interval, quotient, ratio_interval, share_interval
from llmgwd.verdict.scale import add_coarse, cell, spread_quantile


def histogram(rng: random.Random, n: int, median_s: float) -> dict[int, int]:
    times: dict[int, int] = {}
    for _ in range(n):
        add_coarse(times, {cell(median_s * math.exp(rng.gauss(0, 1))): 1})
    return times


@pytest.mark.parametrize(("hits", "n"), [(0, 0), (0, 50), (50, 50), (3, 200), (400, 1000)])
def test_a_share_lies_in_its_interval_and_more_requests_narrow_it(hits: int, n: int) -> None:
    low, high = share_interval(hits, n, 0.05)
    assert 0 <= low <= (hits / n if n else 0.5) <= high <= 1
    if n:
        wide = share_interval(hits, n, 0.001)
        assert wide[0] <= low
        assert high <= wide[1]
        many = share_interval(100 * hits, 100 * n, 0.05)
        assert many[1] - many[0] < high - low


def test_a_share_is_missed_at_any_of_many_looks_in_fewer_lives_than_alpha() -> None:
    rng, lives, missed = random.Random(5), 200, 0
    for _ in range(lives):
        hits = 0
        for n in range(1, 401):
            hits += rng.random() < 0.1
            low, high = share_interval(hits, n, 0.2) if n % 10 == 0 else (0.0, 1.0)
            if not low <= 0.1 <= high:
                missed += 1
                break
    assert missed / lives <= 0.2


def test_a_difference_is_bounded_by_both_shares() -> None:
    low, high = difference_interval((5, 5), (0, 45), 0.05)
    assert 0.1 < low < high == 1.0
    assert difference_interval((0, 0), (0, 0), 0.05) == (-1.0, 1.0)


def test_a_ratio_of_times_lies_in_its_interval_which_a_wandering_replica_widens() -> None:
    rng = random.Random(2)
    canary, stable = histogram(rng, 300, 0.8), histogram(rng, 3000, 0.4)
    low, high = ratio_interval(canary, stable, 0.05)
    assert low is not None
    assert high is not None
    assert 1.4 < low < 2 < high < 2.8
    wide = ratio_interval(canary, stable, 0.05, 4.0)
    assert wide[0] is not None
    assert wide[0] < low


def test_few_times_bound_nothing() -> None:
    assert ratio_interval({}, {3: 1}, 0.05) == (None, None)
    assert ratio_interval({0: 1}, {3: 1}, 0.05) == (None, None)
    assert quantile_interval({}, 0.95, 0.05) == (None, None)
    assert quantile_interval({5: 3}, 0.95, 0.05)[1] is None


def test_constant_times_have_a_ratio_known_to_a_bucket() -> None:
    low, high = ratio_interval({16: 400}, {0: 4000}, 0.05)
    assert low is not None
    assert high is not None
    assert 1.85 < low <= 2 <= high < 2.15


def test_a_quantile_lies_in_its_interval() -> None:
    times = histogram(random.Random(3), 2000, 0.4)
    low, high = quantile_interval(times, 0.95, 0.05)
    found = spread_quantile(times, 0.95)
    assert low is not None
    assert high is not None
    assert found is not None
    assert low < found < high < 2 * low


def test_a_quotient_of_intervals_has_the_bounds_that_both_have() -> None:
    assert quotient((2.0, 4.0), (1.0, 2.0)) == (1.0, 4.0)
    assert quotient((2.0, None), (1.0, 2.0)) == (1.0, None)
    assert quotient((2.0, 4.0), (None, None)) == (None, None)
