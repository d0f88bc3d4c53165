"""What the command line asks and the daemon answers on the control socket.

Each side says `Hello` first. Then a client sends one request after another; each is answered by any number of `Update`s
and exactly one final reply. An unknown request gets a `Failure`. New fields have defaults.
"""

from collections.abc import Sequence

import msgspec

from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.states import OnDeadline
from llmgwd.protocol.views import (
    CanaryView,
    EngineView,
    EventView,
    JobView,
    ModelView,
    PreviewView,
    ProgressView,
    PrunedView,
    StatusView,
    UpdateView,
    VerifiedView,
    WeightsView,
)

PROTOCOL_VERSION = 1


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First frame of each side."""

    program: str
    version: int = PROTOCOL_VERSION


class WeightsChoice(msgspec.Struct, frozen=True):
    """Which weights a model or canary is to run on; what is null is taken from the model or chosen."""

    repo: str | None = None
    revision: str | None = None
    file: str | None = None
    """A glob over the repository's files."""
    quant: str | None = None
    path: str | None = None
    """Local weights, absolute."""
    allow_unsafe: bool = False
    """Also weights, and repositories, whose authors' code runs when they are loaded."""
    urls: tuple[str, ...] = ()
    """Where somebody else serves them."""
    served_name: str | None = None
    """The model name that is asked for at `urls`; null: the model's own."""
    key_file: str | None = None
    """File with the API key for `urls`, absolute."""


class AdapterChoice(msgspec.Struct, frozen=True):
    """A LoRA adapter that a model is to have: of a repository, or local."""

    name: str
    repo: str | None = None
    revision: str | None = None
    path: str | None = None
    """Absolute."""


class GetStatus(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Status`."""


class ListModels(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Models`."""


class ShowModel(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Models` with the one."""

    name: str


class AddModel(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Started`."""

    name: str
    weights: WeightsChoice
    engine: str = "llamacpp"
    engine_args: tuple[str, ...] = ()
    replicas: int = 1
    aliases: tuple[str, ...] = ()
    description: str = ""
    fallbacks: tuple[str, ...] = ()
    """Names of other models, in the order in which they are asked when it cannot answer."""
    adapters: tuple[AdapterChoice, ...] = ()
    gpus: int | None = None
    """That each replica has to itself; null: as its engine says."""
    fit_check: bool = True
    """Whether it is started only where it fits."""


class RemoveModel(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Started`."""

    name: str


class StartCanary(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Started`; its job says so when there is nothing newer."""

    name: str
    percent: float = 10.0
    weights: WeightsChoice = WeightsChoice()
    engine_args: tuple[str, ...] | None = None
    engine: str | None = None
    """In place of the model's; `external` when null and the weights are at a URL."""
    again: bool = False
    steps: tuple[float, ...] = ()
    """Shares in percent, one after the other, in place of `percent`."""
    hold_s: float = 0.0
    """How long each step is held."""
    auto_promote: bool = False
    deadline_s: float | None = None
    on_deadline: OnDeadline = OnDeadline.HOLD
    limits: dict[str, float | None] = {}
    """Over the configuration's; null: not judged."""
    gpus: int | None = None
    """In place of the model's number."""
    fit_check: bool = True
    """Whether it is started only where it fits."""
    ignore_load: bool = False
    """Whether its times count for promotion though its engine was idle while stable's was full."""
    until_verdict: bool = False
    """Whether who asks waits for its verdict: refused where there can be none."""


class SetPercent(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Done` once every gateway worker follows the new share."""

    name: str
    percent: float


class PausePlan(msgspec.Struct, frozen=True, tag=True):
    """Holds a canary's plan where it is; it is judged on. Answered by `Done`."""

    name: str


class ResumePlan(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Done`."""

    name: str


class SetLimits(msgspec.Struct, frozen=True, tag=True):
    """Changes limits of a running canary, those named. Answered by `Done`."""

    name: str
    limits: dict[str, float | None] = {}
    ignore_load: bool | None = None
    """Whether uneven load is ignored from now on; null: as it was."""


class Promote(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Started`."""

    name: str


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Done` when the canary is out."""

    name: str
    reason: str = ""


class Update(msgspec.Struct, frozen=True, tag=True):
    """Moves a model to its repository's newest weights without a canary. Answered by `Started`."""

    name: str
    weights: WeightsChoice = WeightsChoice()
    fit_check: bool = True
    """Whether its replicas are started only where they fit."""


class Rollback(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Started`."""

    name: str
    fit_check: bool = True
    """Whether its replicas are started only where they fit."""


class ListCanaries(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Canaries`: those that run, or with `ended` those that ran as well, newest first."""

    name: str | None = None
    ended: bool = False


class ListJobs(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Jobs`, newest first."""

    limit: int = 50


class ShowJob(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Jobs` with the one."""

    id: str


class WatchJob(msgspec.Struct, frozen=True, tag=True):
    """Answered by a `JobChanged` now and at each change, and by `Jobs` with the one when it has ended."""

    id: str


class CancelJob(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Done` when the job has ended and what it did is undone."""

    id: str


class WatchCanary(msgspec.Struct, frozen=True, tag=True):
    """Answered by `CanaryChanged` now and at each change of its state, and by `Canaries` with the one when it ended."""

    id: str


class ListEvents(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Events`: the newest `limit` in order of time."""

    limit: int = 50
    model: str | None = None


class ListUpdates(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Updates`, once the hub has been asked; with `follow` by an `UpdateChecked` a model before that."""

    name: str | None = None
    follow: bool = False


class ListWeights(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Weights`."""


class PruneWeights(msgspec.Struct, frozen=True, tag=True):
    """Removes the weights on disk that nothing needs, or with `dry_run` only says which. Answered by `Pruned`."""

    dry_run: bool = False


class VerifyWeights(msgspec.Struct, frozen=True, tag=True):
    """Hashes weights on disk again, a model's or those of a commit's first digits; null: all. `repair` fetches again
    what is damaged. Answered by `VerifyProgress`es and `Verified`.
    """

    of: str | None = None
    repair: bool = False


class FindLogs(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Logs`: the log files of a model's replicas, which the caller reads itself."""

    name: str


class ListEngines(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Engines`."""


class ShowEngine(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Engines` with the one; with `model` as that model would run on it."""

    name: str
    model: str | None = None


class Preview(msgspec.Struct, frozen=True, tag=True):
    """Says what the request would do, having checked it in the same way. Answered by `Previewed`."""

    request: AddModel | StartCanary


Request = (
    GetStatus
    | ListModels
    | ShowModel
    | AddModel
    | RemoveModel
    | StartCanary
    | SetPercent
    | PausePlan
    | ResumePlan
    | SetLimits
    | Promote
    | Abort
    | Update
    | Rollback
    | ListCanaries
    | ListJobs
    | ShowJob
    | WatchJob
    | CancelJob
    | WatchCanary
    | ListEvents
    | ListUpdates
    | ListWeights
    | PruneWeights
    | VerifyWeights
    | FindLogs
    | ListEngines
    | ShowEngine
    | Preview
)


class Status(msgspec.Struct, frozen=True, tag=True):
    status: StatusView


class Models(msgspec.Struct, frozen=True, tag=True):
    models: Sequence[ModelView]


class Canaries(msgspec.Struct, frozen=True, tag=True):
    canaries: Sequence[CanaryView]


class Jobs(msgspec.Struct, frozen=True, tag=True):
    jobs: Sequence[JobView]


class Events(msgspec.Struct, frozen=True, tag=True):
    events: Sequence[EventView]


class Updates(msgspec.Struct, frozen=True, tag=True):
    updates: Sequence[UpdateView]


class Weights(msgspec.Struct, frozen=True, tag=True):
    """What is in the weights folder, the newest first; sizes in bytes."""

    revisions: Sequence[WeightsView]
    folder: str
    free_bytes: int
    prunable_bytes: int


class Pruned(msgspec.Struct, frozen=True, tag=True):
    """What was removed, or with `dry_run` would be."""

    removed: Sequence[PrunedView]
    dry_run: bool = False


class Logs(msgspec.Struct, frozen=True, tag=True):
    paths: Sequence[str]


class Engines(msgspec.Struct, frozen=True, tag=True):
    engines: Sequence[EngineView]


class Previewed(msgspec.Struct, frozen=True, tag=True):
    preview: PreviewView


class Started(msgspec.Struct, frozen=True, tag=True):
    """A job was written and will run. A canary bears the id of the job that makes it."""

    job: JobView


class Done(msgspec.Struct, frozen=True, tag=True):
    """The verb took effect, or there was nothing to do; `message` says which."""

    message: str
    canary: CanaryView | None = None


class Failure(msgspec.Struct, frozen=True, tag=True):
    """The request was refused or failed. `code` is for programs, the words for people."""

    code: str
    message: str
    hint: str = ""
    status: ExitStatus = ExitStatus.FAILED


class JobChanged(msgspec.Struct, frozen=True, tag=True):
    job: JobView


class CanaryChanged(msgspec.Struct, frozen=True, tag=True):
    canary: CanaryView


class VerifyProgress(msgspec.Struct, frozen=True, tag=True):
    repo: str
    revision: str
    progress: ProgressView


class Verified(msgspec.Struct, frozen=True, tag=True):
    revisions: Sequence[VerifiedView]


class UpdateChecked(msgspec.Struct, frozen=True, tag=True):
    update: UpdateView


Reply = (
    Hello
    | Status
    | Models
    | Canaries
    | Jobs
    | Events
    | Updates
    | Weights
    | Pruned
    | Logs
    | Engines
    | Previewed
    | Started
    | Done
    | Failure
    | JobChanged
    | CanaryChanged
    | UpdateChecked
    | VerifyProgress
    | Verified
)
