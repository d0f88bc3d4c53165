"""The promote job: the canary's running replica becomes the model's (K7)."""

from contextlib import suppress

import msgspec

from llmgwd.domain.canary import Canary, CanaryEvent, after, no_canary
from llmgwd.domain.catalog import canary_name, moved
from llmgwd.domain.errors import LlmgwError, refused
from llmgwd.jobs.run import Run
from llmgwd.jobs.runner import Recipe
from llmgwd.jobs.services import Services
from llmgwd.jobs.succeed import TAKE_OVER_WITHIN_S, not_taken_over, replace_in_turn, stop_failed
from llmgwd.protocol.states import CanaryPhase, EventKind


async def catalog(run: Run) -> str:
    """Moves the model to its canary's weights; after this there is no way back but `rollback`."""
    services, name = run.services, run.job.model
    if not run.job.written:
        await _wait_until_up(run)
        _move(run)
    # No await between the commit and this: the replica is never nobody's.
    for replica in services.fleet.of(canary_name(name)):
        services.fleet.give(replica, name)
    await services.dataplane.publish()
    if found := services.store.canaries.of(name):
        services.feed.publish(found.id)
    assert run.job.before is not None
    return f"{name}: {run.job.before.origin.short} → {run.model.origin.short}"


async def _wait_until_up(run: Run) -> None:
    """After a restart the canary's replica may have to answer again first."""
    services = run.services
    for replica in services.fleet.of(canary_name(run.job.model)):
        with suppress(LlmgwError):
            await services.fleet.ensure_ready(replica, TAKE_OVER_WITHIN_S)


def _move(run: Run) -> None:
    """Commits. Raises LlmgwError when there is no canary to move to, or it does not answer."""
    services, model = run.services, run.model
    canary = services.store.canaries.of(model.name)
    if canary is None:
        raise no_canary(model, "promote")
    row = services.store.models.find(canary.name)
    assert row is not None
    check_ready(services, canary)
    promoting = msgspec.structs.replace(canary, phase=after(canary, CanaryEvent.PROMOTE))
    old = tuple(replica.id for replica in services.fleet.of(model.name))
    with run.writing(written=True, committed=True, before=model, replaced=old):
        new = moved(model, row.origin, row.engine_args, row.engine, gpus=row.gpus, fit_check=row.fit_check)
        services.store.models.put(new)
        services.store.models.delete(canary.name)
        services.store.canaries.put(promoting)
        event = services.log_event(
            run.job.by, EventKind.CANARY_PROMOTED, model.name, before=model.origin.short, after=row.origin.short
        )
    services.announce(event)


async def replicas(run: Run) -> str:
    """Keeps the canary's replica as it runs and replaces the old ones, one at a time."""
    kept = [replica.id for replica in run.new]
    try:
        started, stopped = await replace_in_turn(run)
    except LlmgwError as error:
        await stop_failed(run)
        raise not_taken_over(run, error) from error
    parts = [f"kept {replica} as it runs" for replica in kept]
    parts += [f"started {started}"] if started else []
    return ", ".join([*parts, f"stopped {stopped} old"])


async def canary(run: Run) -> str:
    """Closes the canary's record."""
    services, name = run.services, run.job.model
    ending = services.store.canaries.of(name)
    if ending is not None and ending.phase is CanaryPhase.PROMOTING:
        promoted = msgspec.structs.replace(
            ending,
            phase=after(ending, CanaryEvent.PROMOTED),
            ended=services.now(),
            reason=f"promoted by {run.job.by}",
        )
        services.dataplane.save()
        with services.store.transaction():
            services.store.canaries.put(promoted)
        services.dataplane.forget(ending.id)
        services.feed.publish(ending.id)
    return f"{canary_name(name)} is {name} now"


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


def _outcome(run: Run) -> str:
    return f"{run.job.model} serves {run.model.origin.short} now"


async def undo(run: Run, why: str) -> None:
    """Before the commit there is nothing to undo; after it the model has moved and the canary is over."""
    if run.job.committed:
        await canary(run)


RECIPE = Recipe((catalog, replicas, canary), _outcome, undo)
