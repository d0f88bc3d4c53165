"""The enumerations that both sides show and decide by."""

from enum import StrEnum


class JobKind(StrEnum):
    ADD = "add"
    UPDATE = "update"
    CANARY = "canary"
    PROMOTE = "promote"
    ROLLBACK = "rollback"
    REMOVE = "remove"


class JobState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StepState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class ReplicaState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class CanaryPhase(StrEnum):
    """Where a canary is in its life; the last four are final."""

    PREPARING = "preparing"
    SERVING = "serving"
    PROMOTING = "promoting"
    REMOVING = "removing"
    PROMOTED = "promoted"
    ABORTED = "aborted"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"


class VerdictState(StrEnum):
    WORSE = "worse"
    FINE = "fine"
    UNDECIDED = "undecided"
