from datetime import UTC, datetime

import msgspec
import pytest

from llmgwd.domain.canary import Canary
from llmgwd.domain.catalog import Model, Origin, candidate
from llmgwd.domain.jobs import STEPS, Ending, Job, planned
from llmgwd.domain.recovery import MOST_ENDS, WAY_BACK, Course, WayBack, can_be_undone, course, served_meanwhile
from llmgwd.protocol.states import CanaryPhase, JobKind, JobState, StepState

NOW = datetime(2026, 1, 2, tzinfo=UTC)
OLD, NEW = Origin(repo="a/b", revision="1" * 40), Origin(repo="a/b", revision="2" * 40)
BEFORE, AFTER = Model("chat", OLD), Model("chat", NEW, previous=OLD)
ROW = candidate(BEFORE, NEW, None)
EVERY_STEP = [pytest.param(kind, step, id=f"{kind} {step}") for kind, steps in STEPS.items() for step in steps]


def job_at(kind: JobKind, at_step: str, **fields: object) -> Job:
    """A running job that is at this step, or with "" through with all of them."""
    at = [*STEPS[kind], ""].index(at_step)
    states = [StepState.DONE] * at + [StepState.RUNNING] + [StepState.PENDING] * len(STEPS[kind])
    steps = tuple(
        msgspec.structs.replace(each, state=state) for each, state in zip(planned(kind), states, strict=False)
    )
    job = Job(f"{kind}-1-1", kind, "chat", "ann", NOW, state=JobState.RUNNING, steps=steps)
    return msgspec.structs.replace(job, **fields)


def canary_in(phase: CanaryPhase) -> Canary:
    return Canary("canary-1-1", "chat", NEW, OLD, 10, "ann", NOW, phase=phase)


def test_every_step_of_every_kind_has_its_rule() -> None:
    assert set(WAY_BACK) == {(kind, step) for kind, steps in STEPS.items() for step in steps}


@pytest.mark.parametrize("kind", JobKind)
def test_the_way_back_closes_once_and_stays_closed(kind: JobKind) -> None:
    order = [WayBack.OPEN, WayBack.UNTIL_COMMITTED, WayBack.CLOSED]
    ways = [order.index(WAY_BACK[kind, step]) for step in STEPS[kind]]
    assert ways == sorted(ways)
    assert ways.count(1) <= 1


@pytest.mark.parametrize(("kind", "step"), EVERY_STEP)
def test_an_unfinished_job_goes_on_at_whichever_step_it_was(kind: JobKind, step: str) -> None:
    assert course(job_at(kind, step)) is Course.GO_ON


@pytest.mark.parametrize(("kind", "step"), EVERY_STEP)
def test_an_ending_that_was_begun_is_brought_to_its_end(kind: JobKind, step: str) -> None:
    assert course(job_at(kind, step, ending=Ending(JobState.CANCELLED, "ann", "by ann"))) is Course.UNDO


@pytest.mark.parametrize(("kind", "step"), EVERY_STEP)
def test_a_step_that_ends_the_daemon_every_time_is_given_up_while_there_is_a_way_back(kind: JobKind, step: str) -> None:
    given_up = Course.GO_ON if WAY_BACK[kind, step] is WayBack.CLOSED else Course.UNDO
    assert course(job_at(kind, step, resumed=MOST_ENDS - 1)) is Course.GO_ON
    assert course(job_at(kind, step, resumed=MOST_ENDS)) is given_up


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        (JobKind.PROMOTE, "catalog"),
        (JobKind.UPDATE, "replicas"),
        (JobKind.ROLLBACK, "replicas"),
        (JobKind.REMOVE, "catalog"),
    ],
)
def test_what_has_committed_only_goes_on(kind: JobKind, step: str) -> None:
    assert can_be_undone(job_at(kind, step))
    committed = job_at(kind, step, committed=True, resumed=MOST_ENDS)
    assert not can_be_undone(committed)
    assert course(committed) is Course.GO_ON


def test_a_job_that_is_through_with_its_steps_cannot_be_undone() -> None:
    assert not can_be_undone(job_at(JobKind.CANARY, ""))


def moved(kind: JobKind, step: str, **fields: object) -> Job:
    return job_at(kind, step, written=True, before=BEFORE, **fields)


@pytest.mark.parametrize(
    ("job", "served"),
    [
        pytest.param(None, AFTER, id="no job: the row"),
        pytest.param(job_at(JobKind.CANARY, "placement", written=True), AFTER, id="only a canary's job: the row"),
        pytest.param(job_at(JobKind.UPDATE, "weights"), AFTER, id="not moved yet: the row"),
        pytest.param(moved(JobKind.UPDATE, "replicas"), BEFORE, id="moved, not arrived: what it had"),
        pytest.param(moved(JobKind.UPDATE, "replicas", committed=True), AFTER, id="arrived: the row"),
        pytest.param(moved(JobKind.PROMOTE, "replicas", committed=True), None, id="promoted: the job's"),
        pytest.param(moved(JobKind.PROMOTE, "canary", committed=True), AFTER, id="promoted, replicas seen to: the row"),
        pytest.param(moved(JobKind.UPDATE, "", committed=True), AFTER, id="through with all steps: the row"),
        pytest.param(job_at(JobKind.ADD, "replicas", written=True), None, id="added: the job's"),
        pytest.param(job_at(JobKind.ADD, "", written=True), AFTER, id="added, through with all steps: the row"),
    ],
)
def test_what_serves_a_model_until_its_job_has_gone_on(job: Job | None, served: Model | None) -> None:
    assert served_meanwhile(AFTER, None, job) == served


@pytest.mark.parametrize("phase", list(CanaryPhase))
def test_of_canaries_only_one_that_serves_is_started(phase: CanaryPhase) -> None:
    wanted = ROW if phase is CanaryPhase.SERVING else None
    assert served_meanwhile(ROW, canary_in(phase), None) == wanted
