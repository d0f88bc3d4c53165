import pytest

from llmgwd.verdict.limits import KNOWN, LimitError, Metric, complete, limit_of, parse, weights, written


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        pytest.param("bad_answers=+0.5", ("bad_answers", 0.5), id="points with a sign"),
        pytest.param("ttft=1.1", ("ttft", 1.1), id="ratio"),
        pytest.param("ttft=1.1x", ("ttft", 1.1), id="ratio with its sign"),
        pytest.param(" speed = 0.9 ", ("speed", 0.9), id="blanks"),
        pytest.param("rejected=off", ("rejected", None), id="off"),
    ],
)
def test_a_limit_is_read_as_people_write_it(text: str, limit: tuple[str, float | None]) -> None:
    assert parse(text) == limit


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("tfft=1.2", "no limit 'tfft'; expected one of bad_answers, ttft", id="unknown"),
        pytest.param("ttft", "write NAME=VALUE", id="no value"),
        pytest.param("ttft=fast", "expected a number or `off`", id="no number"),
        pytest.param("ttft=0", "expected 0.1 to 100 (times stable's)", id="out of range"),
        pytest.param("ttft=nan", "expected 0.1 to 100", id="not a number"),
        pytest.param("bad_answers=-1", "expected 0 to 99 (points above stable's share)", id="negative points"),
    ],
)
def test_a_limit_that_cannot_be_is_refused_with_what_can(text: str, says: str) -> None:
    with pytest.raises(LimitError) as refused:
        parse(text)
    assert says in str(refused.value)


def test_given_limits_stand_over_the_defaults() -> None:
    limits = complete({"ttft": 1.1, "rejected": None})
    assert limits["ttft"] == 1.1
    assert limits["rejected"] is None
    assert limits["speed"] == KNOWN["speed"].default
    with pytest.raises(LimitError, match="tfft"):
        complete({"tfft": 1.2})


def test_the_budget_is_divided_over_the_limits_that_are_on() -> None:
    assert sum(weights(complete({})).values()) == pytest.approx(1)
    some = weights(complete({"ttft": None}))
    assert sum(some.values()) == pytest.approx(1)
    assert Metric.TTFT not in some
    assert Metric.TTFT_P95 not in some
    assert weights(dict.fromkeys(KNOWN)) == {}


def test_every_metric_has_one_limit() -> None:
    assert {limit_of(metric) for metric in Metric} == set(KNOWN)
    assert limit_of(Metric.TTFT_P95) == "ttft"


def test_limits_are_written_with_their_unit() -> None:
    assert written("bad_answers", 1.0) == "+1 point"
    assert written("bad_answers", 0.5) == "+0.5 points"
    assert written("ttft", 1.2) == "1.2 ×"
    assert written("ttft", None) == "off"
