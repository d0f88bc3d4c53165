"""Job and step records, and the steps of each kind."""

from datetime import datetime

import msgspec

from llmgwd.domain.catalog import Model
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.states import JobKind, JobState
from llmgwd.protocol.views import StepView

STEPS: dict[JobKind, tuple[str, ...]] = {
    JobKind.ADD: ("repository", "weights", "checksums", "catalog", "replicas"),
    JobKind.CANARY: ("repository", "weights", "checksums", "catalog", "placement", "smoke test", "split"),
    JobKind.PROMOTE: ("catalog", "replicas", "canary"),
    JobKind.UPDATE: ("repository", "weights", "checksums", "catalog", "replicas"),
    JobKind.ROLLBACK: ("catalog", "replicas"),
    JobKind.REMOVE: ("catalog", "routes", "replicas"),
}


class Job(msgspec.Struct, frozen=True):
    """One long-running operation. `args` is the request that asked for it, as MessagePack."""

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

    @property
    def over(self) -> bool:
        return self.state not in (JobState.PENDING, JobState.RUNNING)


def job_id(kind: JobKind, now: datetime, seq: int) -> str:
    """`seq` is the job table's running number."""
    return f"{kind}-{int(now.timestamp())}-{seq}"


def planned(kind: JobKind) -> tuple[StepView, ...]:
    return tuple(StepView(name) for name in STEPS[kind])
