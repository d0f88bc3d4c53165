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
    TellDeadline,
    Wait,
    check_plan,
    next_move,
    resumed,
)
from llmgwd.protocol.states import OnDeadline, VerdictState

T0 = datetime(2026, 1, 1, tzinfo=UTC)
UNDECIDED, FINE = VerdictState.UNDECIDED, VerdictState.FINE


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


STEPS = Plan((5, 25, 50), hold_s=1800, auto_promote=True)
BY_HAND = Plan((5, 25, 50), hold_s=1800)
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
            STEPS, Progress(T0, paused_at=at(10)), FINE, at(99), Wait("its plan is paused"), id="paused holds the plan"
        ),
        pytest.param(Plan((10,), auto_promote=True), Progress(T0), FINE, at(0), PromoteIt(), id="no steps, no hold"),
        pytest.param(DEADLINE, Progress(T0), UNDECIDED, at(60), TellDeadline(), id="deadline tells"),
        pytest.param(GIVES_UP, Progress(T0), UNDECIDED, at(60), GiveUp(), id="deadline gives up"),
        pytest.param(GIVES_UP, Progress(T0, paused_at=T0), UNDECIDED, at(60), GiveUp(), id="also while paused"),
        pytest.param(
            GIVES_UP, Progress(T0), FINE, at(60), Wait("waits for a person to promote or abort it"), id="fine in time"
        ),
        pytest.param(
            DEADLINE,
            Progress(T0, deadline_told=True),
            UNDECIDED,
            at(61),
            Wait("waits for a person to promote or abort it"),
            id="told once",
        ),
    ],
)
def test_what_a_plan_does(plan: Plan, progress: Progress, verdict: VerdictState, now: datetime, move: Move) -> None:
    assert next_move(plan, progress, verdict, now) == move


def test_a_pause_does_not_count_towards_the_hold() -> None:
    paused = Progress(T0, paused_at=at(10))
    assert resumed(paused, at(50)) == Progress(T0, step_since=at(40))
    assert resumed(Progress(T0), at(50)) == Progress(T0)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Plan((5, 5)), "must rise"),
        (Plan((50, 25)), "must rise"),
        (Plan((0, 5)), "step of 0 %"),
        (Plan((5, 101)), "step of 101 %"),
        (Plan((5,), hold_s=-1), "hold of -1"),
        (Plan((5,), deadline_s=float("nan")), "deadline of nan"),
    ],
)
def test_plans_that_cannot_be_carried_out(plan: Plan, says: str) -> None:
    with pytest.raises(LlmgwError, match=says):
        check_plan(plan)
