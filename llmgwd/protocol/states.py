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
    CRASH_LOOP = "crash_loop"
    """Failed again and again; it goes on being tried."""


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


class EventKind(StrEnum):
    """Everything that the event log tells of."""

    MODEL_ADDED = "model_added"
    MODEL_UPDATED = "model_updated"
    MODEL_ROLLED_BACK = "model_rolled_back"
    MODEL_REMOVED = "model_removed"
    FALLBACK_REMOVED = "fallback_removed"
    MOVE_UNDONE = "move_undone"
    CANARY_STARTED = "canary_started"
    CANARY_SHARE = "canary_share"
    CANARY_PAUSED = "canary_paused"
    CANARY_RESUMED = "canary_resumed"
    CANARY_LIMITS = "canary_limits"
    CANARY_UNDECIDED = "canary_undecided"
    CANARY_PROMOTED = "canary_promoted"
    CANARY_ABORTED = "canary_aborted"
    CANARY_ROLLED_BACK = "canary_rolled_back"
    CANARY_FAILED = "canary_failed"
    CANARY_REMOVAL_TRIED_AGAIN = "canary_removal_tried_again"
    JOB_DONE = "job_done"
    JOB_FAILED = "job_failed"
    JOB_CANCELLED = "job_cancelled"
    JOB_RESUMED = "job_resumed"
    NEWER_WEIGHTS = "newer_weights"


class OnDeadline(StrEnum):
    """What becomes of a canary that is still undecided at its deadline."""

    HOLD = "hold"
    ABORT = "abort"


class WeightsFormat(StrEnum):
    """What an engine takes as its weights."""

    ANY = "any"
    """The engine is not known well enough to say."""
    GGUF = "gguf"
    FOLDER = "folder"
    """A folder as Hugging Face has them: safetensors, tokenizer and config."""
    NONE = "none"
    """They are somebody else's business."""
