import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgwd.verdict.scale import FINE_BITS, STEP, add_coarse, cell, spread_quantile, steps_within
from llmgwd.verdict.sketch import WIDTH, bucket

TIMES = st.floats(1e-4, 1e4)


@given(TIMES)
def test_a_fine_cell_lies_in_the_bucket_of_its_time(seconds: float) -> None:
    # At a bucket's very edge the two may round apart.
    edge = abs(math.log(seconds) / WIDTH - round(math.log(seconds) / WIDTH))
    if edge > 1e-6:
        assert cell(seconds) >> FINE_BITS == bucket(seconds)


@given(TIMES, st.floats(0.2, 5.0))
def test_dividing_by_a_ratio_moves_a_cell_by_one_of_two_whole_numbers(seconds: float, ratio: float) -> None:
    most, least = steps_within(ratio)
    assert 0 <= most - least <= 1
    moved = cell(seconds * ratio) - cell(seconds)
    slack = min(abs(math.log(value) / STEP - round(math.log(value) / STEP)) for value in (seconds, seconds * ratio))
    if slack > 1e-6:
        assert least <= moved <= most


@pytest.mark.parametrize("odd", [0.0, -1.0, math.inf, math.nan, 1e-300, 1e300])
def test_every_value_has_a_cell_in_a_bounded_range(odd: float) -> None:
    assert abs(cell(odd)) <= 320 << FINE_BITS


@given(st.lists(TIMES, min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_a_quantile_is_known_to_within_a_bucket(times: list[float], q: float) -> None:
    histogram: dict[int, int] = {}
    for seconds in times:
        add_coarse(histogram, {cell(seconds): 1})
    exact = sorted(times)[max(0, math.ceil(q * len(times) - 1e-9) - 1)]
    found = spread_quantile(histogram, q)
    assert found is not None
    assert abs(math.log(found / exact)) <= WIDTH * (1 + 1e-6)


def test_nothing_has_no_quantile() -> None:
    assert spread_quantile({}, 0.5) is None
