"""The update and rollback jobs: a model moves to other weights without a canary."""

from llmgwd.domain.catalog import Model, moved, moved_back
from llmgwd.jobs.acquire import checksums, repository, weights
from llmgwd.jobs.run import Run
from llmgwd.jobs.runner import Recipe
from llmgwd.jobs.succeed import start_missing, stop_others


async def catalog_update(run: Run) -> str:
    """Moves the model's row to the new weights."""
    assert run.origin is not None
    model = run.services.store.models.get(run.job.model)
    return _put(run, model, moved(model, run.origin, model.engine_args), "model_updated")


async def catalog_rollback(run: Run) -> str:
    """Moves the model's row back to its previous weights."""
    services = run.services
    model = services.store.models.get(run.job.model)
    back = moved_back(model)
    services.spec(back)  # Raises when those weights are not on disk, before anything has moved.
    return _put(run, model, back, "model_rolled_back")


def _put(run: Run, old: Model, new: Model, what: str) -> str:
    services = run.services
    with services.store.transaction():
        services.store.models.put(new)
        event = services.log_event(run.job.by, what, new.name, before=old.origin.short, after=new.origin.short)
    run.model = new
    run.before = old
    services.announce(event)
    return f"{new.name}: {old.origin.short} → {new.origin.short}"


async def replicas(run: Run) -> str:
    """Starts replicas on the new weights, then drains and ends the old ones."""
    started = await start_missing(run)
    run.committed = True
    await run.services.dataplane.publish()
    return f"started {started}, stopped {await stop_others(run)} old"


async def replicas_rollback(run: Run) -> str:
    """As an update's; once the weights are left, they are remembered (K10)."""
    detail = await replicas(run)
    services, left, back = run.services, run.before, run.model
    assert left is not None
    assert back is not None
    if left.origin.repo and left.origin.revision:
        why = f"{run.job.by} went back to {back.origin.short}"
        services.store.canaries.reject(left.name, left.origin.repo, left.origin.revision, services.now(), why)
    return detail


def _outcome(run: Run) -> str:
    assert run.model is not None
    return f"{run.model.name} serves {run.model.origin.short} now"


async def undo(run: Run, why: str) -> None:
    """Puts the row back and ends what was started; the old replicas have served all along."""
    services, old = run.services, run.before
    if old is None or run.committed:
        return
    assert run.model is not None
    with services.store.transaction():
        services.store.models.put(old)
        event = services.log_event(
            "llmgw", "move_undone", old.name, before=run.model.origin.short, after=old.origin.short, why=why
        )
    services.announce(event)
    for replica in run.replicas:
        services.fleet.drain(replica)
    await services.dataplane.publish()
    for replica in run.replicas:
        await services.dataplane.drain(replica, services.settings.gateway.drain)
        await services.fleet.stop(replica)


UPDATE = Recipe((repository, weights, checksums, catalog_update, replicas), _outcome, undo)
ROLLBACK = Recipe((catalog_rollback, replicas_rollback), _outcome, undo)
