import pytest

from llmgwd.verdict.counts import ArmCounts
from llmgwd.verdict.evidence import add_canary, begin, ripe
from llmgwd.verdict.rate import Rate
from llmgwd.verdict.settle import settle


@pytest.mark.parametrize("looks", [1, 2, 10, 1000])
def test_a_steady_rate_is_known_from_the_first_look_on(looks: int) -> None:
    rate = Rate()
    for look in range(looks):
        rate.pass_to(101 + look, first=100)
        rate.add(10)
    assert rate.value == pytest.approx(10, rel=0.01)


def test_looks_in_which_nothing_came_count_as_time() -> None:
    rate = Rate()
    for look in range(2000):
        rate.pass_to(1 + look, first=0)
        rate.add(60 if look % 60 == 0 else 0)
    assert rate.value == pytest.approx(1, rel=0.6)


def test_what_was_is_forgotten() -> None:
    rate = Rate()
    for look in range(1000):
        rate.pass_to(1 + look, first=0)
        rate.add(10 if look < 500 else 1)
    assert rate.value == pytest.approx(1, rel=0.01)


def test_a_clock_that_is_set_back_loses_nothing() -> None:
    rate = Rate()
    for look in (1, 2, 3, -1000, -999, -998):
        rate.pass_to(look, first=0)
        rate.add(10)
    assert 8 < rate.value < 15


def test_before_anything_there_is_none() -> None:
    assert Rate().value == 0


def test_requests_that_end_late_do_not_count_as_looks_of_their_own() -> None:
    evidence = begin({})
    for look in range(300):
        add_canary(evidence, look, 0.1, ArmCounts(arrived=10, ended=9))
        if look >= 5:
            add_canary(evidence, look - 5, 0.1, ArmCounts(ended=1))
        settle(evidence, ripe(evidence, (look + 1) * evidence.look_s), look + 1)
    assert evidence.arrivals.value == pytest.approx(10, rel=0.1)
