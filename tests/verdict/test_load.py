import pytest

from llmgwd.verdict.load import ArmLoad, Load, LoadFigures, LookLoad, Slots, add_up, figures, is_uneven, look_of

LOOK_S = 30.0
SLOTS = Slots(canary=4, stable=8)
FAR_S = 1000 * LOOK_S


def look(number: int, judged: int, canary: ArmLoad | None = None, stable: ArmLoad | None = None) -> LookLoad:
    return LookLoad(number, judged, canary or ArmLoad(), stable or ArmLoad())


def added(*looks: LookLoad, judged_from: int | None = 0, slots: Slots = SLOTS) -> Load:
    load = Load(list(looks))
    assert add_up(load, FAR_S, LOOK_S, judged_from, slots)
    assert load.open == []
    return load


def test_a_load_is_the_average_over_the_looks_time() -> None:
    canary, stable = figures(added(look(1, 5, ArmLoad(15.0, 12.0, 600), ArmLoad(300.0, 240.0, 9000))))
    assert canary == LoadFigures(in_flight=0.5, busy=0.1, tokens_per_s=20.0)
    assert stable == LoadFigures(in_flight=10.0, busy=1.0, tokens_per_s=300.0)


def test_a_look_weighs_as_many_as_the_canarys_requests_in_it() -> None:
    busy, quiet = ArmLoad(300.0, 240.0, 3000), ArmLoad(30.0, 30.0, 300)
    _, stable = figures(added(look(1, 9, stable=busy), look(2, 1, stable=quiet), look(3, 0, stable=quiet)))
    assert stable.in_flight == pytest.approx(9.1, rel=0.001)
    assert stable.busy == pytest.approx(0.9 + 0.1 / 8, rel=0.001)
    assert stable.tokens_per_s == pytest.approx(91, rel=0.001)


def test_a_load_of_long_ago_is_forgotten() -> None:
    busy, quiet = ArmLoad(300.0, 240.0, 3000), ArmLoad(30.0, 30.0, 300)
    early = [look(number, 20, stable=busy) for number in range(1, 200)]
    late = [look(number, 20, stable=quiet) for number in range(200, 400)]
    load = added(*early, *late)
    assert figures(load)[1].in_flight == pytest.approx(1, rel=0.1)
    assert load.judged == 399 * 20


def test_tokens_that_come_in_when_no_request_arrives_count() -> None:
    asked, given = look(1, 5, ArmLoad(30.0, 30.0, 0)), look(2, 0, ArmLoad(30.0, 30.0, 1200))
    assert figures(added(asked, given))[0].tokens_per_s == pytest.approx(20)


def test_looks_whose_times_are_not_judged_are_left_out() -> None:
    hot = ArmLoad(240.0, 240.0, 100)
    load = added(look(1, 5, stable=hot), look(2, 5), judged_from=2)
    assert (load.judged, figures(load)[1].in_flight) == (5, 0)
    assert figures(added(look(1, 5, stable=hot), judged_from=None)) == (LoadFigures(), LoadFigures())


def test_without_a_number_of_slots_the_part_of_them_is_not_known() -> None:
    busy = ArmLoad(60.0, 0.0, 30)
    canary, stable = figures(added(look(1, 5, busy, busy), slots=Slots(canary=None, stable=4)))
    assert (canary.in_flight, canary.busy) == (2.0, None)
    assert stable.busy == 0.0


def test_more_slots_in_use_than_there_are_count_as_all() -> None:
    assert figures(added(look(1, 5, ArmLoad(500.0, 500.0))))[0].busy == 1.0


def test_a_look_is_added_up_when_its_samples_have_come_in() -> None:
    load = Load()
    look_of(load, 10).judged = 3
    assert not add_up(load, 11 * LOOK_S + 1, LOOK_S, 0, SLOTS)
    look_of(load, 10).stable.held_s += 30.0
    assert add_up(load, 11 * LOOK_S + 3, LOOK_S, 0, SLOTS)
    assert figures(load)[1].in_flight == 1.0


def test_a_clock_that_was_set_back_leaves_no_look_open_for_ever() -> None:
    load = Load([look(2000, 5, ArmLoad(30.0))])
    assert add_up(load, FAR_S, LOOK_S, 0, SLOTS)
    assert (load.open, load.judged) == ([], 0)


@pytest.mark.parametrize(
    ("canary", "stable", "uneven"),
    [
        pytest.param(0.0, 1.0, True, id="idle beside full"),
        pytest.param(0.25, 0.9, True, id="just so"),
        pytest.param(0.26, 1.0, False, id="the canary has something to do"),
        pytest.param(0.0, 0.89, False, id="stable has room"),
        pytest.param(1.0, 1.0, False, id="both full"),
        pytest.param(0.0, 0.0, False, id="both idle"),
        pytest.param(1.0, 0.0, False, id="the canary alone is full"),
        pytest.param(None, 1.0, False, id="the canary's slots are not known"),
        pytest.param(0.0, None, False, id="stable's slots are not known"),
        pytest.param(None, None, False, id="nothing is known"),
    ],
)
def test_load_is_uneven_when_the_canary_idles_beside_a_full_stable(
    canary: float | None, stable: float | None, uneven: bool
) -> None:
    assert is_uneven(LoadFigures(busy=canary), LoadFigures(busy=stable)) is uneven
