"""The update and rollback jobs: a model moves to other weights without a canary."""

import msgspec

from llmgwd.domain.catalog import Model, moved, moved_back
from llmgwd.jobs.acquire import checksums, repository, weights
from llmgwd.jobs.run import Run
from llmgwd.jobs.runner import Recipe
from llmgwd.jobs.services import Services
from llmgwd.jobs.succeed import start_missing, stop_others
from llmgwd.jobs.take_out import retire
from llmgwd.protocol.states import EventKind
from llmgwd.protocol.views import EventView


async def catalog_update(run: Run) -> str:
    """Moves the model's row to the new weights."""
    assert run.origin is not None
    model = run.services.store.models.get(run.job.model)
    return _put(run, model, moved(model, run.origin, model.engine_args), EventKind.MODEL_UPDATED)


async def catalog_rollback(run: Run) -> str:
    """Moves the model's row back to its previous weights."""
    services = run.services
    model = services.store.models.get(run.job.model)
    back = moved_back(model)
    services.spec(back)  # Raises when those weights are not on disk, before anything has moved.
    return _put(run, model, back, EventKind.MODEL_ROLLED_BACK)


def _put(run: Run, old: Model, new: Model, what: EventKind) -> str:
    services = run.services
    with services.store.transaction():
        services.store.models.put(new)
        run.job = msgspec.structs.replace(run.job, before=old)
        services.store.jobs.save(run.job)
        event = services.log_event(run.job.by, what, new.name, before=old.origin.short, after=new.origin.short)
    run.model = new
    services.announce(event)
    return f"{new.name}: {old.origin.short} → {new.origin.short}"


async def replicas(run: Run) -> str:
    """Starts replicas on the new weights, then drains and ends the old ones."""
    started = await start_missing(run)
    run.commit()
    return f"started {started}, stopped {await stop_others(run)} old"


async def replicas_rollback(run: Run) -> str:
    """As an update's; once the weights are left, they are remembered (K10)."""
    detail = await replicas(run)
    services, left, back = run.services, run.job.before, run.model
    assert left is not None
    assert back is not None
    if key := left.origin.key:
        why = f"{run.job.by} went back to {back.origin.short}"
        services.store.canaries.reject(left.name, *key, services.now(), why)
    return detail


def _outcome(run: Run) -> str:
    assert run.model is not None
    return f"{run.model.name} serves {run.model.origin.short} now"


async def undo(run: Run, why: str) -> None:
    """Puts the row back and ends what was started; the old replicas have served all along."""
    services, old = run.services, run.job.before
    if old is None or run.committed:
        return
    with services.store.transaction():
        event = put_back(services, old, why)
    services.announce(event)
    await retire(services, run.replicas)


def put_back(services: Services, old: Model, why: str) -> EventView:
    """Writes that a move never took place; to be called in a transaction."""
    now = services.store.models.find(old.name)
    services.store.models.put(old)
    return services.log_event(
        "llmgw",
        EventKind.MOVE_UNDONE,
        old.name,
        before=now.origin.short if now else "",
        after=old.origin.short,
        why=why,
    )


UPDATE = Recipe((repository, weights, checksums, catalog_update, replicas), _outcome, undo)
ROLLBACK = Recipe((catalog_rollback, replicas_rollback), _outcome, undo)
