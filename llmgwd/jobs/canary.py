"""The canary job: newer weights fetched, run beside the model, tried, and given their share."""

import msgspec

from llmgwd.domain.canary import Canary, CanaryEvent, after
from llmgwd.domain.catalog import Model
from llmgwd.domain.differences import how_it_runs_differs
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import size_words
from llmgwd.domain.plan import Plan, Progress
from llmgwd.engines import probe
from llmgwd.engines.replica import Replica
from llmgwd.jobs.acquire import asked, checksums, repository, weights
from llmgwd.jobs.choices import wanted_row
from llmgwd.jobs.run import Run
from llmgwd.jobs.runner import Recipe
from llmgwd.jobs.take_out import take_out
from llmgwd.protocol.messages import StartCanary
from llmgwd.protocol.states import CanaryPhase, EventKind, JobState

SMOKE_TOKENS = 48
SMOKE_TIMEOUT_S = 120.0


async def catalog(run: Run) -> str:
    """Adds NAME-canary beside the model."""
    request = _request(run)
    store, services = run.services.store, run.services
    row = wanted_row(request, run.model, run.origin, services.engines)
    if not run.job.written:
        model = run.model
        with run.writing(written=True):
            store.models.put(row)
            store.canaries.put(_begun(run, model, request, how_it_runs_differs(model, row)))
            limits = {**services.settings.canary.limits, **request.limits}
            services.dataplane.bench.open(run.job.id, limits, services.settings.canary.every)
            event = services.log_event(
                run.job.by,
                EventKind.CANARY_STARTED,
                model.name,
                before=model.origin.short,
                after=run.origin.short,
                why="uneven load is ignored" if request.ignore_load else "",
            )
        services.announce(event)
    services.feed.publish(run.job.id)
    return f"{row.name}: {row.description}"


def _begun(run: Run, model: Model, request: StartCanary, runs_otherwise: str) -> Canary:
    return Canary(
        id=run.job.id,
        model=model.name,
        origin=run.origin,
        stable_origin=model.origin,
        share=plan_of(request).steps[0],
        by=run.job.by,
        started=run.services.now(),
        plan=plan_of(request),
        look_s=float(run.services.settings.canary.every),
        ignores_load=request.ignore_load,
        runs_otherwise=runs_otherwise,
    )


async def placement(run: Run) -> str:
    """Starts the canary's replica and waits until it has answered."""
    started = run.services.now()
    replica = await _ensure_replica(run)
    seconds = (run.services.now() - started).total_seconds()
    return f"{replica.id} ready at {replica.address} in {seconds:.1f} s{_taken(replica)}"


def _taken(replica: Replica) -> str:
    memory = f"takes {size_words(replica.needs.host_bytes)}" if replica.needs else ""
    gpus = f"has {', '.join(replica.gpus)} to itself" if replica.gpus else ""
    return "".join(f", {each}" for each in (memory, gpus) if each)


async def _ensure_replica(run: Run) -> Replica:
    """The canary's replica, ready: the one that runs, or else a new one. Raises LlmgwError when it does not serve."""
    services, row = run.services, run.services.store.models.find(_canary(run).name)
    assert row is not None
    running = [replica for replica in services.fleet.of(row.name) if not replica.is_leaving]
    replica = running[0] if running else services.fleet.start(services.spec(row))
    run.detail(f"waiting for {replica.id}" if running else f"starting {replica.id}")
    await services.fleet.ensure_ready(replica)
    return replica


async def smoke_test(run: Run) -> str:
    """Asks the canary for a real completion (K3)."""
    replica = await _ensure_replica(run)
    async with probe.client(replica.address, replica.key) as engine:
        answer = await probe.complete(engine, replica.spec.served_name, SMOKE_TOKENS, SMOKE_TIMEOUT_S)
    if not answer.text:
        raise LlmgwError("empty_answer", f"{replica.id} answered with nothing")
    speed = "" if answer.tokens_per_s is None else f"{answer.tokens_per_s:.0f} tokens/s: "
    return f"{speed}“{_shortened(answer.text, 80)}”"


async def split(run: Run) -> str:
    """Gives the canary its share."""
    services, canary = run.services, _canary(run)
    if canary.phase is CanaryPhase.PREPARING:
        run.check()
        with services.store.transaction():
            now = services.now()
            # A pause, or a share by a person, while it was prepared holds the plan from its beginning.
            progress = msgspec.structs.replace(canary.progress or Progress(since=now), since=now, step_since=None)
            serving = msgspec.structs.replace(canary, phase=after(canary, CanaryEvent.READY), progress=progress)
            services.store.canaries.put(serving)
            event = services.log_event(
                run.job.by, EventKind.CANARY_SHARE, canary.model, before="0 %", after=f"{canary.share:g} %", why="ready"
            )
        services.announce(event)
    await services.dataplane.publish()
    services.feed.publish(canary.id)
    return f"{canary.share:g} % of {canary.model}'s requests"


def _outcome(run: Run) -> str:
    canary = _canary(run)
    return f"{canary.name} serves {canary.share:g} % of {canary.model}'s requests"


async def undo(run: Run, why: str) -> None:
    """Takes out what was made so far."""
    services = run.services
    canary = services.store.canaries.find(run.job.id)
    ending = run.job.ending
    if canary is not None and canary.runs and ending is not None:
        phase = CanaryPhase.ABORTED if ending.state is JobState.CANCELLED else CanaryPhase.FAILED
        await take_out(services, canary.id, by=ending.by, ending=phase, reason=why)


def plan_of(request: StartCanary) -> Plan:
    """What was asked for; without steps it is the one share."""
    return Plan(
        steps=request.steps or (request.percent,),
        hold_s=request.hold_s,
        auto_promote=request.auto_promote,
        deadline_s=request.deadline_s,
        on_deadline=request.on_deadline,
    )


def _request(run: Run) -> StartCanary:
    request = asked(run)
    assert isinstance(request, StartCanary)
    return request


def _canary(run: Run) -> Canary:
    canary = run.services.store.canaries.find(run.job.id)
    assert canary is not None
    return canary


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


RECIPE = Recipe((repository, weights, checksums, catalog, placement, smoke_test, split), _outcome, undo)
