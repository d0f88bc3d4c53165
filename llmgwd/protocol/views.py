"""What the daemon shows: the shapes behind every listing and every `--json`.

Times are aware datetimes in UTC (RFC 3339 in JSON), durations seconds, sizes bytes, shares percent. A field that is
not known is null, never zero.
"""

from datetime import datetime

import msgspec

from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.samples import Outcome
from llmgwd.protocol.states import (
    CanaryPhase,
    EventKind,
    JobKind,
    JobState,
    ReplicaState,
    StepState,
    VerdictState,
    WeightsFormat,
)


class ProgressView(msgspec.Struct, frozen=True):
    done: int
    total: int | None
    unit: str
    """`bytes` while fetching and hashing, else what is counted."""


class StepView(msgspec.Struct, frozen=True):
    name: str
    state: StepState = StepState.PENDING
    detail: str = ""
    started: datetime | None = None
    ended: datetime | None = None
    progress: ProgressView | None = None


class JobView(msgspec.Struct, frozen=True):
    """One long-running operation. `outcome` says in one line what came of it once it ended; `hint` what to do next."""

    id: str
    kind: JobKind
    model: str
    state: JobState
    by: str
    created: datetime
    started: datetime | None = None
    ended: datetime | None = None
    outcome: str = ""
    hint: str = ""
    exit_status: ExitStatus = ExitStatus.DONE
    """What a command that waited for it exits with."""
    steps: tuple[StepView, ...] = ()


class OriginView(msgspec.Struct, frozen=True):
    """Where weights come from: a repository at a pinned revision, or a path."""

    repo: str | None
    revision: str | None
    files: tuple[str, ...]
    path: str | None
    size_bytes: int | None
    content: str | None = None
    """A hash of all of it: of a single large file its sha256."""
    context_length: int | None = None
    quantisation: str | None = None
    urls: tuple[str, ...] = ()
    """Where somebody else serves them."""
    served_name: str | None = None
    """What is asked for at `urls`, where that is not the model's name."""


class ReplicaView(msgspec.Struct, frozen=True):
    id: str
    state: ReplicaState
    address: str
    pid: int | None
    revision: str | None
    log: str
    detail: str = ""
    failures: int = 0
    """In a row; 0 again once it has served for a while."""
    last_lines: tuple[str, ...] = ()
    """Of its log when it last failed, until it is ready again."""
    gpus: tuple[str, ...] = ()
    """UUIDs of those that it has to itself."""
    memory_bytes: int | None = None
    """Of the host, with the weights that it maps and may share; by estimate until it was ready."""
    own_memory_bytes: int | None = None
    """What of it would be free without it."""
    gpu_memory_bytes: int | None = None
    """On each of its GPUs."""
    memory_measured: bool = False


class AdapterView(msgspec.Struct, frozen=True):
    """A LoRA adapter of a model, by the name that clients ask for."""

    name: str
    origin: OriginView


class ModelView(msgspec.Struct, frozen=True):
    """One model. `ready` of `wanted` replicas answer; `canary` names its canary when it has one."""

    name: str
    description: str
    engine: str
    engine_args: tuple[str, ...]
    origin: OriginView
    previous: OriginView | None
    aliases: tuple[str, ...]
    fallbacks: tuple[str, ...]
    declared: bool
    wanted: int
    ready: int
    replicas: tuple[ReplicaView, ...]
    canary: str | None = None
    canary_share: float | None = None
    job: str | None = None
    """The id of its running job."""
    changes: str = ""
    """In what it differs from what it ran on before; empty when that is not known."""
    canary_changes: str = ""
    """In what its canary differs from it."""
    adapters: tuple[AdapterView, ...] = ()
    gpus: int = 0
    """That each replica has to itself."""
    fit_check: bool = True
    """Whether its replicas are started only where they fit."""


class ArmView(msgspec.Struct, frozen=True):
    """What one arm did over the canary's life."""

    revision: str | None
    requests: int
    """Requests that count in the verdict: neither cancelled nor with a forced arm."""
    outcomes: dict[Outcome, int]
    bad_share: float | None
    """Part of `requests` that were errors, truncated or empty, 0–1."""
    length_share: float | None
    """Part of `requests` that ran into the length limit, 0–1."""
    ttft_s: float | None
    """Median time to first token."""
    tokens_per_s: float | None
    """Median output speed."""
    prompt_tokens: int
    completion_tokens: int
    forced: int
    rescued: int
    in_flight: float | None = None
    """Requests that its engines had at once, on average while its times were measured."""
    slots_busy: float | None = None
    """Part of its engines' slots that were in use then, 0–1; null also when their number is not known."""
    output_tokens_per_s: float | None = None
    """Tokens that all its requests together were given a second then."""


class MetricView(msgspec.Struct, frozen=True):
    """One thing that is judged.

    Shares are 0–1 and `low`, `high` bound the difference of the arms; times are seconds (`speed`: per output token, so
    that more is worse everywhere) and `low`, `high` bound their ratio. The interval holds at every look.
    """

    metric: str
    state: str
    """`worse`, `within`, `undecided`, `off`, or `absent` where no answer of either arm can have it."""
    limit: float | None
    canary_n: int
    stable_n: int
    canary_value: float | None
    stable_value: float | None
    low: float | None
    high: float | None


class VerdictView(msgspec.Struct, frozen=True):
    state: VerdictState
    sentence: str
    metrics: tuple[MetricView, ...] = ()
    needs_requests: int | None = None
    """Canary requests until it is fine, if it goes on like this; null: not to be said."""
    needs_s: float | None = None
    """The time that takes at today's rate."""


class CanaryView(msgspec.Struct, frozen=True):
    """One canary. `share` is what is wanted, `share_real` what the gateway gave it so far, both in percent."""

    id: str
    name: str
    model: str
    phase: CanaryPhase
    by: str
    share: float
    share_real: float | None
    origin: OriginView
    stable_origin: OriginView
    started: datetime
    ended: datetime | None
    stable: ArmView
    canary: ArmView
    verdict: VerdictView
    next: str
    """What happens next, or why nothing does."""
    next_at: datetime | None = None
    """When, where that is known."""
    tokens_share_real: float | None = None
    """Percent of the model's output tokens that the canary gave."""
    steps: tuple[float, ...] = ()
    step: int = 0
    paused: bool = False
    auto_promote: bool = False
    limits: dict[str, float | None] = {}
    reason: str = ""
    """Why it ended."""
    job: str | None = None
    changes: str = ""
    """In what it differs from stable; empty when that is not known."""
    ignores_load: bool = False
    """Whether its times count for promotion though its engine was idle while stable's was full."""


class UpdateView(msgspec.Struct, frozen=True):
    """What the hub has for a model: `newer` when `latest` changes files that the model serves."""

    model: str
    repo: str | None
    revision: str | None
    latest: str | None
    """The newest revision; null when the hub did not say."""
    newer: bool
    summary: str


class WeightsView(msgspec.Struct, frozen=True):
    """One revision on disk; repository and revision are null for what fetches that did not end have left."""

    repo: str | None
    revision: str | None
    size_bytes: int
    unshared_bytes: int
    """What of it no other revision on disk has as well."""
    used_by: tuple[str, ...]
    """Models that serve from it, and `NAME before` for those that did last."""
    kept: bool
    """Whether clean-up leaves it."""


class VerifiedView(msgspec.Struct, frozen=True):
    """One revision on disk whose files were hashed again."""

    repo: str
    revision: str
    verified: str
    """What was verified, in words; empty when it is damaged."""
    damage: str
    """What was found damaged; empty when nothing was."""
    used_by: tuple[str, ...]
    repaired: bool = False
    """Whether what was damaged is whole again."""
    files: int = 0


class PrunedView(msgspec.Struct, frozen=True):
    """What clean-up removed; repository and revision are null for what fetches that did not end have left."""

    repo: str | None
    revision: str | None
    freed_bytes: int


class EngineView(msgspec.Struct, frozen=True):
    """One way to serve weights; as it is written, or with what a model makes of it.

    In `argv` then only what is known at its start is in braces. Of the environment the names are shown alone.
    """

    name: str
    configured: bool
    """Whether it is from the configuration; else it is a preset."""
    argv: tuple[str, ...]
    """Empty: somebody else runs it."""
    env: tuple[str, ...]
    health: str
    """Path of its health page; empty: only a real completion tells that it is ready."""
    ready_timeout_s: float
    slots: int | None
    weights: WeightsFormat
    asked_as: str
    """The model name that it has to be asked for."""
    program: str
    """What has to be installed for it; empty for what others run."""
    program_path: str | None
    """Where that is; null when it is not on the path."""
    models: tuple[str, ...]
    """Those that run on it."""


class FileView(msgspec.Struct, frozen=True):
    path: str
    size_bytes: int
    fetch_bytes: int
    """What of it is not on disk yet."""


class PreviewView(msgspec.Struct, frozen=True):
    """What an `add` or `canary` would do. `name` is what would run then: the model, or its canary."""

    name: str
    newer: bool | None
    """Whether anything would be started; null: only a look into local weights tells."""
    summary: str
    origin: OriginView
    files: tuple[FileView, ...]
    """Of a repository."""
    fetch_bytes: int
    engine: EngineView
    changes: str = ""
    """In what a canary would differ from its model."""


class EventView(msgspec.Struct, frozen=True):
    """One row of the event log."""

    seq: int
    at: datetime
    by: str
    what: EventKind
    model: str
    before: str
    after: str
    why: str


class StatusView(msgspec.Struct, frozen=True):
    """The house at a glance."""

    version: str
    pid: int
    started: datetime
    gateway: str
    admin: str
    workers: int
    state_folder: str
    models: tuple[ModelView, ...]
    canaries: tuple[CanaryView, ...]
    jobs: tuple[JobView, ...]
    """Those that have not ended."""
