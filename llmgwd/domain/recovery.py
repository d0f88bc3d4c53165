"""What a start makes of the jobs that the last life of the daemon left unfinished, and what serves meanwhile. Pure."""

from enum import StrEnum

from llmgwd.domain.canary import Canary
from llmgwd.domain.catalog import Model
from llmgwd.domain.jobs import Job, first_unfinished
from llmgwd.protocol.states import CanaryPhase, JobKind

MOST_ENDS = 5
"""So often may the daemon end at the same step of a job, unasked: then that step may be what ends it."""


class WayBack(StrEnum):
    """Until when a job can still be undone."""

    OPEN = "open"
    UNTIL_COMMITTED = "until committed"
    CLOSED = "closed"


class Course(StrEnum):
    """What becomes of an unfinished job."""

    GO_ON = "go on"
    UNDO = "undo"


WAY_BACK: dict[tuple[JobKind, str], WayBack] = {
    (JobKind.ADD, "repository"): WayBack.OPEN,
    (JobKind.ADD, "weights"): WayBack.OPEN,
    (JobKind.ADD, "checksums"): WayBack.OPEN,
    (JobKind.ADD, "catalog"): WayBack.OPEN,
    (JobKind.ADD, "replicas"): WayBack.OPEN,
    (JobKind.CANARY, "repository"): WayBack.OPEN,
    (JobKind.CANARY, "weights"): WayBack.OPEN,
    (JobKind.CANARY, "checksums"): WayBack.OPEN,
    (JobKind.CANARY, "catalog"): WayBack.OPEN,
    (JobKind.CANARY, "placement"): WayBack.OPEN,
    (JobKind.CANARY, "smoke test"): WayBack.OPEN,
    (JobKind.CANARY, "split"): WayBack.OPEN,
    (JobKind.PROMOTE, "catalog"): WayBack.UNTIL_COMMITTED,
    (JobKind.PROMOTE, "replicas"): WayBack.CLOSED,
    (JobKind.PROMOTE, "canary"): WayBack.CLOSED,
    (JobKind.UPDATE, "repository"): WayBack.OPEN,
    (JobKind.UPDATE, "weights"): WayBack.OPEN,
    (JobKind.UPDATE, "checksums"): WayBack.OPEN,
    (JobKind.UPDATE, "catalog"): WayBack.OPEN,
    (JobKind.UPDATE, "replicas"): WayBack.UNTIL_COMMITTED,
    (JobKind.ROLLBACK, "catalog"): WayBack.OPEN,
    (JobKind.ROLLBACK, "replicas"): WayBack.UNTIL_COMMITTED,
    (JobKind.REMOVE, "catalog"): WayBack.UNTIL_COMMITTED,
    (JobKind.REMOVE, "routes"): WayBack.CLOSED,
    (JobKind.REMOVE, "replicas"): WayBack.CLOSED,
}
"""By the step at which a job is."""


def can_be_undone(job: Job) -> bool:
    """Whether it may still be cancelled: nothing of it is beyond recall."""
    index = first_unfinished(job)
    if index == len(job.steps):
        return False
    way = WAY_BACK[job.kind, job.steps[index].name]
    return way is WayBack.OPEN or (way is WayBack.UNTIL_COMMITTED and not job.committed)


def course(job: Job) -> Course:
    """What a start does with an unfinished job: an ending that was begun is brought to its end, the rest goes on."""
    if job.ending is not None:
        return Course.UNDO
    return Course.UNDO if can_be_undone(job) and job.resumed >= MOST_ENDS else Course.GO_ON


def served_meanwhile(row: Model, canary: Canary | None, job: Job | None) -> Model | None:
    """What replicas of this row run until the unfinished job of its model has gone on.

    `canary` is the model's. None: the job starts what is missing itself, or the row is on its way out.
    """
    if row.canary_of is not None:
        return row if canary is not None and canary.phase is CanaryPhase.SERVING else None
    if job is None or not job.written or "replicas" not in _ahead(job):
        return row
    if job.committed:
        # A promotion replaces the old ones one at a time; all that a move needs had been started once.
        return None if job.kind is JobKind.PROMOTE else row
    # A model that has moved and not arrived is served by what it had; a new one by nothing yet.
    return job.before


def _ahead(job: Job) -> set[str]:
    """The steps that it has not done."""
    return {step.name for step in job.steps[first_unfinished(job) :]}
