import math

from hypothesis import given
from hypothesis import strategies as st

from llmgwd.verdict.sketch import HIGHEST, LOWEST, WIDTH, bucket, quantile


@given(st.floats(1e-5, 1e5))
def test_a_value_is_known_to_within_half_a_bucket(value: float) -> None:
    known = quantile({bucket(value): 1}, 0.5)
    assert known is not None
    assert abs(math.log(known / value)) <= WIDTH / 2 * (1 + 1e-6)


@given(st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=50), st.floats(0, 1))
def test_quantiles_are_those_of_the_values(values: list[float], q: float) -> None:
    histogram: dict[int, int] = {}
    for value in values:
        histogram[bucket(value)] = histogram.get(bucket(value), 0) + 1
    exact = sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
    found = quantile(histogram, q)
    assert found is not None
    assert abs(math.log(found / exact)) <= WIDTH * (1 + 1e-6)


def test_odd_values_have_a_bucket_and_nothing_has_no_quantile() -> None:
    assert bucket(0) == bucket(-1) == LOWEST
    assert bucket(1e300) == HIGHEST
    assert quantile({}, 0.5) is None
