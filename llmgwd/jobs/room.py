"""Whether what a job is to start fits: before its weights are fetched, and when old replicas may make room for new."""

from pathlib import Path

from llmgwd.domain.catalog import Model
from llmgwd.engines.placement import Wanted, wanted
from llmgwd.engines.replica import Replica
from llmgwd.engines.templates import find_engine
from llmgwd.jobs.choices import new_row, wanted_row
from llmgwd.jobs.run import Run
from llmgwd.jobs.take_out import retire
from llmgwd.protocol.messages import AddModel, StartCanary, Update
from llmgwd.protocol.states import ReplicaState


async def check_before_fetch(run: Run, request: AddModel | StartCanary | Update) -> None:
    """Raises LlmgwError when what is known so far says already that it will not fit: sizes, and context if told."""
    path = Path(run.origin.path) if run.origin.path else None
    services = run.services
    if isinstance(request, AddModel):
        await check_row(run, new_row(request, run.origin, services.engines), path, count=request.replicas)
    else:
        await check_row(run, wanted_row(request, run.model, run.origin, services.engines), path)


async def check_row(run: Run, row: Model, path: Path | None, *, count: int = 1) -> None:
    """Raises LlmgwError when replicas of this row fit neither beside what runs nor in turn with the model's own."""
    if not row.fit_check:
        return
    services = run.services
    engine = find_engine(row.engine, services.engines)
    if not engine.argv:
        return
    start = Wanted(row.name, row.origin, path, engine, row.engine_args, row.gpus)
    refusal = await services.fleet.placement.refusal(start, count=count)
    if refusal is None:
        return
    running = [] if row.canary_of else services.fleet.of(row.name)
    going = _dispensable(run, running)
    if going is None or await services.fleet.placement.refusal(start, without=(going.id,)) is not None:
        raise refusal


async def make_room(run: Run) -> int:
    """Ends an old replica where the next new one does not fit beside it and would in its place; how many were ended.

    Never the last that serves: then nothing is done, and the start says what is missing.
    """
    services, row = run.services, run.model
    start = wanted(services.spec(row))
    if not row.fit_check or not start.engine.argv:
        return 0
    if await services.fleet.placement.refusal(start) is None:
        return 0
    going = _dispensable(run, run.old)
    if going is None or await services.fleet.placement.refusal(start, without=(going.id,)) is not None:
        return 0
    run.detail(f"draining {going.id} to make room")
    await retire(services, [going])
    return 1


def _dispensable(run: Run, old: list[Replica]) -> Replica | None:
    """One of the old without which the model is still served, first of all one that does not serve."""
    ready = run.services.fleet.ready(run.job.model)
    for replica in sorted(old, key=lambda each: each.state is ReplicaState.READY):
        if any(each is not replica for each in ready):
            return replica
    return None
