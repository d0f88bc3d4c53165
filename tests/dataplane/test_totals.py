import pytest

from llmgwd.dataplane.totals import FORGET_S, Totals
from llmgwd.protocol.link import ArmRoute, CanaryRoute, ModelRoute, Routes
from llmgwd.protocol.samples import Arm, ArmSample, Outcome


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def told(totals: Totals) -> dict[tuple[str, str, str], dict[Outcome, int]]:
    return {(each.model, each.arm.value, each.revision): each.outcomes for each in totals.all()}


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_all_that_an_arm_did_is_one_series_whoever_was_compared_with_it(clock: Clock) -> None:
    totals = Totals(clock)
    for canary, apart in (("", False), ("c1", False), ("c2", False), ("c2", True)):
        totals.add([ArmSample("chat", Arm.STABLE, "abc", canary, {Outcome.OK: 1}, apart=apart)])
    assert told(totals) == {("chat", "stable", "abc"): {Outcome.OK: 4}}


def test_what_is_served_is_told_of_before_its_first_request(clock: Clock) -> None:
    totals = Totals(clock)
    canary = CanaryRoute("c", 5, ArmRoute("new"))
    totals.follow(Routes(1, (ModelRoute("chat", ArmRoute("old"), canary=canary), ModelRoute("base", ArmRoute("x")))))
    assert told(totals) == {("chat", "stable", "old"): {}, ("chat", "canary", "new"): {}, ("base", "stable", "x"): {}}


def test_what_is_served_no_more_disappears_after_a_while_and_what_is_served_never(clock: Clock) -> None:
    totals = Totals(clock)
    totals.follow(Routes(1, (ModelRoute("chat", ArmRoute("new")),)))
    for revision in ("old", "new"):
        totals.add([ArmSample("chat", Arm.STABLE, revision, outcomes={Outcome.OK: 1})])
    clock.now += FORGET_S
    assert len(told(totals)) == 2
    # A request that began on the old revision ends now, and is told of for as long again.
    totals.add([ArmSample("chat", Arm.STABLE, "old", outcomes={Outcome.OK: 1})])
    clock.now += FORGET_S
    assert told(totals)["chat", "stable", "old"] == {Outcome.OK: 2}
    clock.now += 1
    assert told(totals) == {("chat", "stable", "new"): {Outcome.OK: 1}}
    totals.follow(Routes(2))
    assert told(totals) == {}
