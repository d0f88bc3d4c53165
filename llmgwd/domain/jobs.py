"""Job and step records, and the steps of each kind."""

from datetime import datetime

import msgspec

from llmgwd.domain.catalog import Adapter, Model, Origin
from llmgwd.domain.files import Snapshot
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.states import JobKind, JobState, StepState
from llmgwd.protocol.views import StepView

STEPS: dict[JobKind, tuple[str, ...]] = {
    JobKind.ADD: ("repository", "weights", "checksums", "catalog", "replicas"),
    JobKind.CANARY: ("repository", "weights", "checksums", "catalog", "placement", "smoke test", "split"),
    JobKind.PROMOTE: ("catalog", "replicas", "canary"),
    JobKind.UPDATE: ("repository", "weights", "checksums", "catalog", "replicas"),
    JobKind.ROLLBACK: ("catalog", "replicas"),
    JobKind.REMOVE: ("catalog", "routes", "replicas"),
}


class Ending(msgspec.Struct, frozen=True):
    """How a job ends. Written before anything of it is undone, so that a restart goes on with that."""

    state: JobState
    by: str
    why: str
    hint: str = ""
    status: ExitStatus = ExitStatus.DONE


class Job(msgspec.Struct, frozen=True):
    """One long-running operation. `args` is the request that asked for it, as MessagePack.

    What a step finds out that a later one needs stands here: a restart goes on with nothing but this.
    """

    id: str
    kind: JobKind
    model: str
    by: str
    created: datetime
    args: bytes = b""
    before: Model | None = None
    """The row that it replaced in the catalog, written with the one it put there: what undoing it brings back."""
    state: JobState = JobState.PENDING
    started: datetime | None = None
    ended: datetime | None = None
    outcome: str = ""
    hint: str = ""
    exit_status: ExitStatus = ExitStatus.DONE
    steps: tuple[StepView, ...] = ()
    snapshot: Snapshot | None = None
    """The revision that it found, with the files that it chose of it."""
    origin: Origin | None = None
    """Where the new weights come from."""
    written: bool = False
    """Its change of the catalog is on disk, by the same transaction."""
    committed: bool = False
    """Past its point of no return."""
    replaced: tuple[str, ...] = ()
    """Ids of the replicas that served before it moved the model; what runs beside them is new."""
    ending: Ending | None = None
    resumed: int = 0
    """How often the daemon ended, unasked, at its present step."""
    adapters: tuple[Adapter, ...] = ()
    """Of the model that it adds."""

    @property
    def over(self) -> bool:
        return self.state not in (JobState.PENDING, JobState.RUNNING)


def job_id(kind: JobKind, now: datetime, seq: int) -> str:
    """`seq` is the job table's running number."""
    return f"{kind}-{int(now.timestamp())}-{seq}"


def planned(kind: JobKind) -> tuple[StepView, ...]:
    return tuple(StepView(name) for name in STEPS[kind])


def first_unfinished(job: Job) -> int:
    """The index of the step at which it goes on; past the last one when all are done."""
    done = (StepState.DONE, StepState.SKIPPED)
    return next((index for index, step in enumerate(job.steps) if step.state not in done), len(job.steps))
