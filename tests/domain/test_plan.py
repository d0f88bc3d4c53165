from datetime import UTC, datetime, timedelta

import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.plan import (
    GiveShare,
    GiveUp,
    Move,
    Plan,
    Progress,
    PromoteIt,
    Standing,
    TellDeadline,
    Wait,
    check_plan,
    given_by_hand,
    next_move,
    resumed,
)
from llmgwd.protocol.states import OnDeadline, VerdictState

T0 = datetime(2026, 1, 1, tzinfo=UTC)
UNDECIDED, FINE, WORSE = VerdictState.UNDECIDED, VerdictState.FINE, VerdictState.WORSE


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


STEPS = Plan((5, 25, 50), hold_s=1800, auto_promote=True)
BY_HAND = Plan((5, 25, 50), hold_s=1800)
PAST_DEADLINE = Wait("undecided past its deadline: gets no further share until it is fine", for_resume=True)
LATE = Plan((5, 25), deadline_s=600)
DEADLINE = Plan((10,), deadline_s=3600)
GIVES_UP = Plan((10,), deadline_s=3600, on_deadline=OnDeadline.ABORT)


@pytest.mark.parametrize(
    ("plan", "progress", "verdict", "now", "move"),
    [
        pytest.param(STEPS, Progress(T0), FINE, at(29), Wait("holds 5 %, then 25 %", at(30)), id="holds"),
        pytest.param(STEPS, Progress(T0), UNDECIDED, at(30), GiveShare(1, 25), id="next step"),
        pytest.param(
            STEPS, Progress(T0, 1, at(40)), FINE, at(69), Wait("holds 25 %, then 50 %", at(70)), id="late step"
        ),
        pytest.param(STEPS, Progress(T0), FINE, at(600), GiveShare(1, 25), id="one step at a time, however late"),
        pytest.param(
            STEPS,
            Progress(T0, 2, at(60)),
            FINE,
            at(89),
            Wait("holds 50 %, then it is promoted when the verdict is fine", at(90)),
            id="the last step holds too",
        ),
        pytest.param(STEPS, Progress(T0, 2, at(60)), FINE, at(90), PromoteIt(), id="through and fine"),
        pytest.param(
            STEPS,
            Progress(T0, 2, at(60)),
            UNDECIDED,
            at(900),
            Wait("is promoted as soon as the verdict is fine"),
            id="through and undecided",
        ),
        pytest.param(
            BY_HAND,
            Progress(T0, 2, at(60)),
            FINE,
            at(900),
            Wait("waits for a person to promote or abort it"),
            id="by hand",
        ),
        pytest.param(
            BY_HAND,
            Progress(T0, 2, at(60)),
            FINE,
            at(61),
            Wait("holds 50 %, then waits for a person", at(90)),
            id="by hand, holding",
        ),
        pytest.param(
            STEPS,
            Progress(T0, paused_at=at(10)),
            FINE,
            at(99),
            Wait("its plan is paused", for_resume=True),
            id="paused holds the plan",
        ),
        pytest.param(Plan((10,), auto_promote=True), Progress(T0), FINE, at(0), PromoteIt(), id="no steps, no hold"),
        pytest.param(DEADLINE, Progress(T0), UNDECIDED, at(60), TellDeadline(), id="deadline tells"),
        pytest.param(GIVES_UP, Progress(T0), UNDECIDED, at(60), GiveUp(), id="deadline gives up"),
        pytest.param(
            GIVES_UP,
            Progress(T0, paused_at=T0),
            UNDECIDED,
            at(60),
            Wait(
                "its plan is paused; past its deadline, it is taken out when that goes on, unless it is fine",
                for_resume=True,
            ),
            id="but not past a person's pause",
        ),
        pytest.param(DEADLINE, Progress(T0, paused_at=T0), UNDECIDED, at(60), TellDeadline(), id="tells in a pause"),
        pytest.param(
            GIVES_UP, Progress(T0), FINE, at(60), Wait("waits for a person to promote or abort it"), id="fine in time"
        ),
        pytest.param(
            DEADLINE,
            Progress(T0, deadline_told=True),
            UNDECIDED,
            at(61),
            Wait("waits for a person to promote or abort it; undecided past its deadline"),
            id="told once, and where nothing is left to hold a person decides",
        ),
        pytest.param(
            Plan((5, 25), deadline_s=600, auto_promote=True),
            Progress(T0, 1, deadline_told=True),
            UNDECIDED,
            at(30),
            Wait("is promoted as soon as the verdict is fine; undecided past its deadline"),
            id="undecided past its deadline it is promoted when it is fine",
        ),
        *(
            pytest.param(
                LATE,
                Progress(T0, paused_at=at(5), deadline_told=True),
                verdict,
                at(30),
                Wait("its plan is paused", for_resume=True),
                id=f"a deadline does not hide a pause, {verdict}",
            )
            for verdict in (UNDECIDED, FINE)
        ),
        pytest.param(
            LATE,
            Progress(T0, deadline_told=True),
            UNDECIDED,
            at(30),
            PAST_DEADLINE,
            id="undecided past its deadline it gets no further share",
        ),
        pytest.param(
            LATE,
            Progress(T0, deadline_told=True),
            FINE,
            at(30),
            GiveShare(1, 25),
            id="fine past its deadline it goes on",
        ),
        *(
            pytest.param(
                plan,
                progress,
                WORSE,
                at(900),
                Wait("serves worse: it gets no further share and is taken out"),
                id=f"worse, {name}",
            )
            for name, plan, progress in (
                ("with steps left", STEPS, Progress(T0)),
                ("at the end", STEPS, Progress(T0, 2)),
                ("paused", STEPS, Progress(T0, paused_at=T0)),
                ("past its deadline", GIVES_UP, Progress(T0)),
            )
        ),
    ],
)
def test_what_a_plan_does(plan: Plan, progress: Progress, verdict: VerdictState, now: datetime, move: Move) -> None:
    share = plan.steps[max(0, progress.step)]
    assert next_move(plan, progress, Standing(verdict, share, judged=100), now) == move


@pytest.mark.parametrize(
    ("progress", "judged", "move"),
    [
        (Progress(T0), 0, Wait("waits for 20 more judged canary requests, then 25 %")),
        (Progress(T0), 19, Wait("waits for 1 more judged canary request, then 25 %")),
        (Progress(T0), 20, GiveShare(1, 25)),
        (Progress(T0, judged_before=15), 34, Wait("waits for 1 more judged canary request, then 25 %")),
        (Progress(T0, judged_before=15), 35, GiveShare(1, 25)),
    ],
)
def test_a_step_takes_requests_that_were_judged_since_it_began(progress: Progress, judged: int, move: Move) -> None:
    assert next_move(STEPS, progress, Standing(UNDECIDED, 5, judged), at(600)) == move


@pytest.mark.parametrize("progress", [Progress(T0), Progress(T0, 2)], ids=["steps left", "at the end"])
def test_a_canary_without_a_ready_replica_gets_no_share_and_no_promotion(progress: Progress) -> None:
    standing = Standing(FINE, 5, judged=100, is_ready=False)
    assert next_move(STEPS, progress, standing, at(600)) == Wait("waits for its replica to be ready")


@pytest.mark.parametrize("progress", [Progress(T0), Progress(T0, 2)], ids=["steps left", "at the end"])
def test_a_canary_that_a_person_gives_nothing_gets_no_share_and_no_promotion(progress: Progress) -> None:
    standing = Standing(FINE, 0, judged=100)
    assert next_move(STEPS, progress, standing, at(600)) == Wait("nothing: its share is 0")


def test_one_without_a_share_is_still_ended_by_its_deadline() -> None:
    waits = next_move(GIVES_UP, Progress(T0), Standing(UNDECIDED, 0), at(1))
    assert isinstance(waits, Wait)
    assert waits.why.endswith(f"; still undecided at {at(60):%Y-%m-%d %H:%M:%S} UTC, it is taken out")
    assert next_move(GIVES_UP, Progress(T0), Standing(UNDECIDED, 0), at(60)) == GiveUp()


def test_one_that_was_found_worse_without_a_share_is_not_said_to_be_taken_out_now() -> None:
    worse = Wait("was found worse, and is taken out as soon as it has a share")
    assert next_move(STEPS, Progress(T0), Standing(WORSE, 0), at(1)) == worse


def test_the_hold_is_told_with_the_share_that_the_canary_has() -> None:
    assert next_move(STEPS, Progress(T0, 1), Standing(FINE, 40), T0) == Wait("holds 40 %, then 50 %", at(30))
    assert next_move(STEPS, Progress(T0, -1), Standing(FINE, 2), T0) == Wait("holds 2 %, then 5 %", at(30))


@pytest.mark.parametrize(
    ("progress", "held_since"),
    [
        pytest.param(Progress(T0, paused_at=at(10)), at(40), id="ten minutes held"),
        pytest.param(Progress(T0, paused_at=at(-120)), at(50), id="paused while it was prepared"),
        pytest.param(Progress(T0, 1, step_since=at(20), paused_at=at(10)), at(50), id="a share given in the pause"),
        pytest.param(Progress(T0, 1, step_since=at(20), paused_at=at(25)), at(45), id="a later step"),
    ],
)
def test_a_pause_does_not_count_towards_the_hold(progress: Progress, held_since: datetime) -> None:
    after = resumed(STEPS, progress, at(50))
    assert (after.step_since, after.paused_at) == (held_since, None)


def test_what_is_not_paused_is_not_changed_by_going_on() -> None:
    assert resumed(STEPS, Progress(T0), at(50)) == Progress(T0)
    one_share = Progress(T0, deadline_told=True)
    assert resumed(DEADLINE, one_share, at(50)) == one_share


@pytest.mark.parametrize("paused_at", [None, at(5), at(20)], ids=["not paused", "paused before", "paused after"])
def test_a_person_lets_a_plan_go_on_past_its_deadline(paused_at: datetime | None) -> None:
    going_on = resumed(LATE, Progress(T0, deadline_told=True, paused_at=paused_at), at(30))
    assert next_move(LATE, going_on, Standing(UNDECIDED, 5, judged=100), at(31)) == GiveShare(1, 25)


def test_a_share_by_a_person_past_the_deadline_holds_until_the_plan_is_let_go_on() -> None:
    plan = Plan((5, 25, 50), hold_s=60, deadline_s=600)
    by_hand = given_by_hand(plan, Progress(T0, deadline_told=True), 25, at(30), 100)
    assert by_hand is not None
    standing = Standing(UNDECIDED, 25, judged=200)
    assert next_move(plan, by_hand, standing, at(40)) == Wait("its plan is paused", for_resume=True)
    assert next_move(plan, resumed(plan, by_hand, at(40)), standing, at(41)) == GiveShare(2, 50)


@pytest.mark.parametrize(("share", "step"), [(0, -1), (2, -1), (5, 0), (24, 0), (40, 1), (50, 2), (90, 2)])
def test_a_share_by_a_person_holds_the_plan_which_goes_on_above_it(share: float, step: int) -> None:
    by_hand = given_by_hand(STEPS, Progress(T0, 1, at(30), judged_before=20), share, at(40), 70)
    assert by_hand == Progress(T0, step, at(40), judged_before=70, paused_at=at(40))
    going_on = resumed(STEPS, by_hand, at(100))
    assert isinstance(next_move(STEPS, going_on, Standing(UNDECIDED, share, 200), at(129)), Wait)
    after = next_move(STEPS, going_on, Standing(UNDECIDED, share, 90), at(130))
    assert isinstance(after, Wait) if share in (0, 50, 90) else after == GiveShare(step + 1, STEPS.steps[step + 1])


@pytest.mark.parametrize("plan", [STEPS, Plan((10,), auto_promote=True)], ids=["steps", "promotion"])
@pytest.mark.parametrize("progress", [None, Progress(T0)], ids=["preparing", "serving"])
def test_every_plan_that_would_act_is_held_by_a_persons_share(plan: Plan, progress: Progress | None) -> None:
    held = given_by_hand(plan, progress, 0, at(1), 0)
    assert held is not None
    assert held.paused_at == at(1)


@pytest.mark.parametrize(
    ("plan", "acts"),
    [
        pytest.param(Plan((10,)), False, id="one share"),
        pytest.param(Plan((10,), hold_s=60), False, id="one share that is held"),
        pytest.param(Plan((10, 20)), True, id="steps"),
        pytest.param(Plan((10,), auto_promote=True), True, id="promotion"),
        pytest.param(Plan((10,), deadline_s=60), True, id="deadline"),
    ],
)
def test_a_plan_acts_when_something_follows_by_itself(plan: Plan, acts: bool) -> None:
    assert plan.acts is acts


def test_a_plan_of_one_share_has_nothing_to_hold() -> None:
    assert given_by_hand(Plan((10,)), Progress(T0), 5, at(1), 0) == Progress(T0)
    assert given_by_hand(Plan((10,)), None, 5, at(1), 0) is None


def test_a_pause_that_has_begun_is_kept_by_a_persons_share() -> None:
    held = given_by_hand(STEPS, Progress(T0, paused_at=at(1)), 5, at(3), 0)
    assert held is not None
    assert held.paused_at == at(1)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Plan((5, 5)), "must rise"),
        (Plan((50, 25)), "must rise"),
        (Plan((0, 5)), "step of 0 %"),
        (Plan((5, 101)), "step of 101 %"),
        (Plan((5, 50, 100)), "step of 100 %.*nothing is left to compare with"),
        (Plan((5,), hold_s=-1), "hold of -1"),
        (Plan((5,), deadline_s=float("nan")), "deadline of nan"),
    ],
)
def test_plans_that_cannot_be_carried_out(plan: Plan, says: str) -> None:
    with pytest.raises(LlmgwError, match=says):
        check_plan(plan)


def test_all_requests_can_be_given_but_not_with_a_promotion_that_waits_for_a_comparison() -> None:
    check_plan(Plan((100,)), of_steps=False)
    with pytest.raises(LlmgwError, match="cannot be found fine"):
        check_plan(Plan((100,), auto_promote=True), of_steps=False)


@pytest.mark.parametrize(("plan", "ends"), [(DEADLINE, "people are told"), (GIVES_UP, "it is taken out")])
def test_what_waits_says_what_its_deadline_brings(plan: Plan, ends: str) -> None:
    waits = next_move(plan, Progress(T0), Standing(UNDECIDED, 10), at(1))
    assert isinstance(waits, Wait)
    assert waits.why.endswith(f"; still undecided at {at(60):%Y-%m-%d %H:%M:%S} UTC, {ends}")
    fine = next_move(plan, Progress(T0), Standing(VerdictState.FINE, 10), at(1))
    assert isinstance(fine, Wait)
    assert "undecided" not in fine.why
