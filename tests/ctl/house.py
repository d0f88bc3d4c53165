"""A small house of models, canaries and jobs that scripted daemons show, and the script of one where all is well."""

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

import msgspec

from llmgwd.protocol import messages as m
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
from llmgwd.protocol.views import (
    ArmView,
    CanaryView,
    EngineView,
    EventView,
    FileView,
    JobView,
    ModelView,
    OriginView,
    PreviewView,
    ProgressView,
    PrunedView,
    ReplicaView,
    StatusView,
    StepView,
    UpdateView,
    VerdictView,
    VerifiedView,
    WeightsView,
)

OLD = "5f3a9c1e0b7d4c2a8f6e1d3b5a7c9e0f2b4d6a8c"
NEW = "9b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e6f7a8b9c"
NOW = datetime.now(UTC).replace(microsecond=0)
SENTENCE = "the canary's bad answers are within what stable shows; 201 of the 600 requests a verdict needs so far"

CHAT_ORIGIN = OriginView("acme/chat-gguf", OLD, ("chat-q4_k_m.gguf",), None, 98_400_000)
CANDIDATE_ORIGIN = OriginView("acme/chat-gguf", NEW, ("chat-q4_k_m.gguf",), None, 98_500_000)
CHAT = ModelView(
    name="chat",
    description="answers the help desk",
    engine="llamacpp",
    engine_args=("--ctx-size", "4096"),
    origin=CHAT_ORIGIN,
    previous=None,
    aliases=("assistant",),
    fallbacks=(),
    declared=False,
    wanted=1,
    ready=1,
    replicas=(
        ReplicaView("chat-1", ReplicaState.READY, "127.0.0.1:41233", 4711, OLD, "/var/lib/llmgw/logs/chat-1.log"),
    ),
    canary="chat-canary",
    canary_share=10.0,
)
BASE = ModelView(
    name="base",
    description="",
    engine="llama-server",
    engine_args=(),
    origin=OriginView(None, None, (), "/srv/weights/base.gguf", 4_200_000_000),
    previous=None,
    aliases=(),
    fallbacks=(),
    declared=True,
    wanted=2,
    ready=1,
    replicas=(),
)
STABLE_ARM = ArmView(
    revision=OLD,
    requests=1804,
    outcomes={Outcome.OK: 1800, Outcome.ERROR: 4},
    bad_share=4 / 1804,
    length_share=0.031,
    ttft_s=0.1124,
    tokens_per_s=41.23,
    prompt_tokens=90_000,
    completion_tokens=180_000,
    forced=2,
    rescued=0,
    in_flight=3.42,
    slots_busy=0.842,
    output_tokens_per_s=1138.6,
)
CANARY_ARM = msgspec.structs.replace(
    STABLE_ARM,
    revision=NEW,
    requests=201,
    outcomes={Outcome.OK: 200, Outcome.TRUNCATED: 1},
    bad_share=1 / 201,
    ttft_s=0.118,
    tokens_per_s=40.8,
    in_flight=0.39,
    slots_busy=0.097,
    output_tokens_per_s=15.6,
)
CANARY_ID = "canary-1764529000-3"
CANARY = CanaryView(
    id=CANARY_ID,
    name="chat-canary",
    model="chat",
    phase=CanaryPhase.SERVING,
    by="ops",
    share=10.0,
    share_real=9.95,
    origin=CANDIDATE_ORIGIN,
    stable_origin=CHAT_ORIGIN,
    started=NOW - timedelta(minutes=42),
    ended=None,
    stable=STABLE_ARM,
    canary=CANARY_ARM,
    verdict=VerdictView(VerdictState.UNDECIDED, SENTENCE),
    next="looks again every 30 s and takes the canary out when it is worse",
    tokens_share_real=10.1,
)
STEP_NAMES = ("repository", "weights", "checksums", "catalog", "placement", "smoke test", "split")
STEP_DETAILS = (
    "9b1c2d3 is newer than 5f3a9c1, 1 file changed",
    "chat-q4_k_m.gguf, 98.5 MB",
    "1 file matches",
    "chat-canary added",
    "ready on 127.0.0.1:41234",
    'said "Good morning" at 43.1 tokens/s',
    "10 % of chat",
)
PENDING_JOB = JobView(
    id=CANARY_ID,
    kind=JobKind.CANARY,
    model="chat",
    state=JobState.PENDING,
    by="ops",
    created=NOW,
    steps=tuple(StepView(name) for name in STEP_NAMES),
)
EVENTS = (
    EventView(1, NOW - timedelta(days=2), "ops", EventKind.MODEL_ADDED, "chat", "", f"acme/chat-gguf@{OLD[:7]}", ""),
    EventView(2, NOW - timedelta(hours=1), "ops", EventKind.CANARY_STARTED, "chat", "0 %", "10 %", ""),
    EventView(
        3, NOW, "llmgw", EventKind.CANARY_ROLLED_BACK, "chat", "10 %", "0 %", "worse: 9 of 120 answers were cut short"
    ),
)
STATUS = StatusView(
    version="0.1.0",
    pid=4242,
    started=NOW - timedelta(hours=3, minutes=12),
    gateway="http://127.0.0.1:8080",
    admin="http://127.0.0.1:8081",
    workers=1,
    state_folder="/var/lib/llmgw",
    models=(CHAT, BASE),
    canaries=(CANARY,),
    jobs=(),
)


def with_step(job: JobView, number: int, **changes: object) -> JobView:
    """The job, running, with changes to one of its steps."""
    steps = list(job.steps)
    steps[number] = msgspec.structs.replace(steps[number], **changes)
    return msgspec.structs.replace(job, state=JobState.RUNNING, started=job.started or NOW, steps=tuple(steps))


def ended(job: JobView, state: JobState, outcome: str = "", hint: str = "") -> JobView:
    status = ExitStatus.DONE if state is JobState.DONE else ExitStatus.FAILED
    changes = {"state": state, "ended": datetime.now(UTC), "outcome": outcome, "hint": hint, "exit_status": status}
    return msgspec.structs.replace(job, **changes)


def course(pause: Callable[[], object] = lambda: None, fail_at: int | None = None) -> Iterator[JobView]:
    """A canary job from its first step to its end, or to the step that fails."""
    job = PENDING_JOB
    for number, detail in enumerate(STEP_DETAILS):
        job = with_step(job, number, state=StepState.RUNNING, started=datetime.now(UTC))
        yield job
        pause()
        if STEP_NAMES[number] == "weights":
            for part in range(8):
                progress = ProgressView(part * 12_300_000, 98_500_000, "bytes")
                job = with_step(job, number, progress=progress)
                yield job
                pause()
        if number == fail_at:
            why = "sha256 of chat-q4_k_m.gguf is 77aa…, the hub says 91bc…"
            job = with_step(job, number, state=StepState.FAILED, ended=datetime.now(UTC), detail=why)
            yield ended(job, JobState.FAILED, "chat serves on as it was", "run it again to fetch the file anew")
            return
        job = with_step(job, number, state=StepState.DONE, ended=datetime.now(UTC), detail=detail, progress=None)
        yield job
    yield ended(job, JobState.DONE, "chat-canary is given 10 % of chat's requests")


def followed(jobs: Iterable[JobView]) -> Iterator[m.Reply]:
    """The answer to a request to watch a job that goes through these."""
    for job in jobs:
        yield m.JobChanged(job) if job.ended is None else m.Jobs((job,))


def finished(phase: CanaryPhase, reason: str) -> CanaryView:
    return msgspec.structs.replace(CANARY, phase=phase, ended=NOW, reason=reason, next="")


UPDATES = (
    UpdateView("chat", "acme/chat-gguf", "5f3a9c1" + "0" * 33, "9b1c2d3" + "0" * 33, newer=True, summary="weights"),
    UpdateView("base", None, None, None, newer=False, summary="local weights: there is no repository"),
)


WEIGHTS = m.Weights(
    (
        WeightsView("acme/chat-gguf", NEW, 98_500_000, 98_500_000, ("chat-canary",), kept=True),
        WeightsView("acme/chat-gguf", OLD, 98_400_000, 1_300_000, ("chat",), kept=True),
        WeightsView("acme/chat-gguf", "77aa" + "0" * 36, 98_400_000, 1_300_000, (), kept=False),
        WeightsView(None, None, 41_000_000, 41_000_000, (), kept=False),
    ),
    folder="/var/lib/llmgw/weights",
    free_bytes=212_000_000_000,
    prunable_bytes=42_300_000,
)


ENGINE = EngineView(
    name="vllm",
    configured=False,
    argv=("vllm", "serve", "{path}", "--served-model-name", "{name}", "--host", "{host}", "--port", "{port}"),
    env=("HF_HUB_OFFLINE",),
    health="/health",
    ready_timeout_s=1200.0,
    slots=None,
    weights=WeightsFormat.FOLDER,
    asked_as="{name}",
    program="vllm",
    program_path=None,
    models=("chat",),
)
PREVIEW = PreviewView(
    name="chat-canary",
    newer=True,
    summary="acme/chat-gguf at 9b1c2d3: weights (1 of 1 files, 93.9 MiB new)",
    origin=CANDIDATE_ORIGIN,
    files=(FileView("chat-q4_k_m.gguf", 98_500_000, 98_500_000),),
    fetch_bytes=98_500_000,
    engine=ENGINE,
    changes="weights (1 of 1 files, 93.9 MiB new)",
)


def well(pause_s: float = 0.0) -> Callable[[m.Request], Iterator[m.Reply]]:
    """The script of a house where every verb succeeds."""

    def script(request: m.Request) -> Iterator[m.Reply]:
        match request:
            case m.GetStatus():
                yield m.Status(STATUS)
            case m.ListModels():
                yield m.Models((CHAT, BASE))
            case m.ShowModel(name) if name != "chat":
                yield m.Failure(
                    "no_such_model",
                    f"there is no model {name}",
                    "`llmgw ctl model list` has the names",
                    ExitStatus.UNKNOWN,
                )
            case m.ShowModel():
                yield m.Models((CHAT,))
            case m.ListCanaries():
                yield m.Canaries((CANARY,))
            case m.ListJobs():
                yield m.Jobs((PENDING_JOB, *list(course())[-1:], *list(course(fail_at=2))[-1:]))
            case m.ShowJob():
                yield m.Jobs(list(course())[-1:])
            case m.WatchJob():
                yield from followed(course(lambda: time.sleep(pause_s)))
            case m.WatchCanary():
                yield m.CanaryChanged(CANARY)
                time.sleep(pause_s)
                yield m.Canaries((finished(CanaryPhase.PROMOTED, "fine after 600 requests"),))
            case m.ListEvents():
                yield m.Events(EVENTS)
            case m.ListUpdates(follow=follow):
                yield from map(m.UpdateChecked, UPDATES if follow else ())
                yield m.Updates(UPDATES)
            case m.ListWeights():
                yield WEIGHTS
            case m.PruneWeights(dry_run):
                yield m.Pruned((PrunedView("acme/chat-gguf", "77aa" + "0" * 36, 1_300_000),), dry_run)
            case m.VerifyWeights():
                yield m.VerifyProgress("acme/chat-gguf", "77aa" + "0" * 36, ProgressView(1 << 20, 1 << 30, "bytes"))
                yield m.Verified((VerifiedView("acme/chat-gguf", "77aa" + "0" * 36, "1 file, hashed again", "", ()),))
            case m.ListEngines():
                yield m.Engines((ENGINE, msgspec.structs.replace(ENGINE, name="my-engine", configured=True)))
            case m.ShowEngine():
                yield m.Engines((ENGINE,))
            case m.Preview():
                yield m.Previewed(PREVIEW)
            case m.FindLogs():
                yield m.Logs(())
            case m.SetPercent(name, percent):
                yield m.Done(f"{name}-canary is given {percent:g} % of {name}'s requests", CANARY)
            case m.Abort(name):
                yield m.Done(f"the canary of {name} is out, {name} serves everything")
            case m.CancelJob(id):
                yield m.Done(f"{id} was cancelled and what it did is undone")
            case _:
                yield m.Started(PENDING_JOB)

    return script
