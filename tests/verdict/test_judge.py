import pytest

from llmgwd.verdict.judge import LIMITS, MIN_REQUESTS, Figures, judge
from llmgwd.verdict.sketch import bucket


def times(seconds: float, count: int) -> dict[int, int]:
    return {bucket(seconds): count}


STABLE = Figures(1000, 5, 10, times(0.2, 1000), times(0.02, 1000))
FINE = Figures(100, 0, 1, times(0.2, 100), times(0.02, 100))


def test_a_canary_within_every_limit_is_fine() -> None:
    verdict = judge(STABLE, FINE, {})
    assert verdict.state == "fine"
    assert "100 canary requests" in verdict.sentence
    assert "1000 on stable" in verdict.sentence


@pytest.mark.parametrize(
    ("canary", "says"),
    [
        pytest.param(Figures(100, 2, 0), "2.0 % bad answers (2 of 100) against 0.5 % on stable (5 of 1000)", id="bad"),
        pytest.param(Figures(100, 0, 70), "70.0 % answers cut at the length limit (70 of 100)", id="length"),
        pytest.param(Figures(100, 0, 0, times(0.4, 100)), "median time to first token", id="ttft"),
        pytest.param(Figures(100, 0, 0, {}, times(0.04, 100)), "tokens/s on 100 answers", id="speed"),
    ],
)
def test_a_canary_beyond_one_limit_is_worse_and_says_with_what_figures(canary: Figures, says: str) -> None:
    verdict = judge(STABLE, canary, {})
    assert verdict.state == "worse"
    assert says in verdict.sentence
    assert "the limit is" in verdict.sentence


def test_too_few_requests_are_undecided_however_bad() -> None:
    verdict = judge(STABLE, Figures(MIN_REQUESTS - 1, MIN_REQUESTS - 1), {})
    assert verdict.state == "undecided"
    assert "1 more" in verdict.sentence


def test_nothing_on_stable_is_undecided() -> None:
    assert judge(Figures(), FINE, {}).state == "undecided"


def test_a_missing_metric_moves_nothing() -> None:
    untimed = Figures(100, 0, 0)
    assert judge(STABLE, untimed, {}).state == "fine"
    assert judge(Figures(1000, 5), FINE, {}).state == "fine"


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_that_is_given_is_the_one_that_counts(limit: str) -> None:
    worse = Figures(100, 5, 20, times(0.4, 100), times(0.04, 100))
    lax = {"bad_answers": 100.0, "length_limited": 100.0, "ttft": 100.0, "speed": 0.01}
    assert judge(STABLE, worse, lax).state == "fine"
    assert judge(STABLE, worse, {**lax, limit: LIMITS[limit]}).state == "worse"


def test_an_unknown_limit_is_never_passed_over() -> None:
    with pytest.raises(KeyError, match="tfft"):
        judge(STABLE, FINE, {"tfft": 1.2})
