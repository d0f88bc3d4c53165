"""The promote job: the canary's running replica becomes the model's (K7)."""

import msgspec

from llmgwd.domain.canary import Canary, CanaryEvent, after, no_canary
from llmgwd.domain.catalog import moved
from llmgwd.domain.errors import LlmgwError, refused
from llmgwd.engines.replica import Replica
from llmgwd.jobs.run import Run
from llmgwd.jobs.runner import Recipe
from llmgwd.jobs.services import Services
from llmgwd.jobs.succeed import not_taken_over, start_missing, stop_failed, stop_others
from llmgwd.protocol.states import CanaryPhase, EventKind


async def catalog(run: Run) -> str:
    """Moves the model to its canary's weights; after this there is no way back but `rollback`."""
    services = run.services
    with services.store.transaction():
        model = services.store.models.get(run.job.model)
        canary = services.store.canaries.of(model.name)
        if canary is None:
            raise no_canary(model.name, "promote")
        row = services.store.models.find(canary.name)
        assert row is not None
        check_ready(services, canary)
        promoting = msgspec.structs.replace(canary, phase=after(canary, CanaryEvent.PROMOTE))
        run.commit()
        run.model = moved(model, row.origin, row.engine_args)
        services.store.models.put(run.model)
        services.store.models.delete(canary.name)
        services.store.canaries.put(promoting)
        event = services.log_event(
            run.job.by, EventKind.CANARY_PROMOTED, model.name, before=model.origin.short, after=row.origin.short
        )
    # No await between the commit and this: the replica is never nobody's.
    for replica in services.fleet.of(canary.name):
        services.fleet.give(replica, model.name)
        run.replicas.append(replica)
    await services.dataplane.publish()
    services.feed.publish(canary.id)
    services.announce(event)
    return f"{model.name}: {model.origin.short} → {row.origin.short}"


async def replicas(run: Run) -> str:
    """Keeps the canary's replica as it runs, starts what is missing beside it, then ends the old ones."""
    kept: list[Replica] = list(run.replicas)
    try:
        started = await start_missing(run)
    except LlmgwError as error:
        await stop_failed(run)
        raise not_taken_over(run, error) from error
    stopped = await stop_others(run)
    parts = [f"kept {replica.id} as it runs" for replica in kept]
    parts += [f"started {started}"] if started else []
    return ", ".join([*parts, f"stopped {stopped} old"])


async def canary(run: Run) -> str:
    """Closes the canary's record."""
    services = run.services
    with services.store.transaction():
        ending = _promoting(run)
        services.store.canaries.put(
            msgspec.structs.replace(
                ending,
                phase=after(ending, CanaryEvent.PROMOTED),
                ended=services.now(),
                reason=f"promoted by {run.job.by}",
            )
        )
        services.dataplane.forget(ending.id)
    services.feed.publish(ending.id)
    return f"{ending.name} is {ending.model} now"


def check_ready(services: Services, canary: Canary) -> None:
    """Raises LlmgwError unless its replica answers: it is to become the model's."""
    if services.fleet.ready(canary.name):
        return
    said = "; ".join(replica.detail for replica in services.fleet.of(canary.name) if replica.detail)
    raise refused(
        "canary_down",
        f"{canary.name} is not ready, and cannot take {canary.model}'s place" + (f": {said}" if said else ""),
        hint=f"wait until it is, or take it out with `llmgw ctl model abort {canary.model}`",
    )


def _promoting(run: Run) -> Canary:
    found = run.services.store.canaries.of(run.job.model)
    assert found is not None
    assert found.phase is CanaryPhase.PROMOTING
    return found


def _outcome(run: Run) -> str:
    assert run.model is not None
    return f"{run.model.name} serves {run.model.origin.short} now"


async def undo(run: Run, why: str) -> None:
    """Before the commit there is nothing to undo; after it the model has moved and the canary is over."""
    if run.committed:
        found = run.services.store.canaries.of(run.job.model)
        if found is not None and found.phase is CanaryPhase.PROMOTING:
            await canary(run)


RECIPE = Recipe((catalog, replicas, canary), _outcome, undo)
