"""The update and rollback jobs: a model moves to other weights without a canary."""

import msgspec

from llmgwd.domain.catalog import Model, moved, moved_back
from llmgwd.domain.differences import how_it_runs_differs, only_runs_otherwise
from llmgwd.jobs.acquire import asked, checksums, repository, weights
from llmgwd.jobs.room import check_row
from llmgwd.jobs.run import Run
from llmgwd.jobs.runner import Recipe
from llmgwd.jobs.services import Services
from llmgwd.jobs.succeed import start_missing, stop_old
from llmgwd.jobs.take_out import retire
from llmgwd.protocol.messages import Rollback
from llmgwd.protocol.states import EventKind, JobKind
from llmgwd.protocol.views import EventView


async def catalog_update(run: Run) -> str:
    """Moves the model's row to the new weights."""
    if not run.job.written:
        request = asked(run)
        new = moved(run.model, run.origin, run.model.engine_args, fit_check=request.fit_check)
        _put(run, new, EventKind.MODEL_UPDATED)
    return _moved_words(run)


async def catalog_rollback(run: Run) -> str:
    """Moves the model's row back to its previous weights."""
    if not run.job.written:
        request = msgspec.msgpack.decode(run.job.args, type=Rollback)
        back = moved_back(run.model, fit_check=request.fit_check)
        # Raises when those weights are not on disk, before anything has moved.
        await check_row(run, back, run.services.spec(back).path)
        _put(run, back, EventKind.MODEL_ROLLED_BACK)
    return _moved_words(run)


def _put(run: Run, new: Model, what: EventKind) -> None:
    services, old = run.services, run.model
    served = tuple(replica.id for replica in services.fleet.of(old.name))
    with run.writing(written=True, before=old, replaced=served):
        services.store.models.put(new)
        event = services.log_event(run.job.by, what, new.name, before=old.origin.short, after=new.origin.short)
    services.announce(event)


def _moved_words(run: Run) -> str:
    assert run.job.before is not None
    return f"{run.job.model}: {run.job.before.origin.short} → {run.model.origin.short}"


async def replicas(run: Run) -> str:
    """Starts replicas on the new weights, then drains and ends the old ones."""
    started, stopped = await start_missing(run)
    if not run.job.committed:
        with run.writing(committed=True):
            if run.job.kind is JobKind.ROLLBACK:
                _remember_left(run)
    return f"started {started}, stopped {stopped + await stop_old(run)} old"


def _remember_left(run: Run) -> None:
    """Writes that the model went back from these weights (K10); to be called in the transaction that commits it."""
    services, left = run.services, run.job.before
    assert left is not None
    why = f"{run.job.by} went back to {run.model.origin.short}"
    otherwise = only_runs_otherwise(run.model.origin, left.origin, how_it_runs_differs(run.model, left))
    services.store.canaries.reject(left.name, left.origin, services.now(), why, otherwise=otherwise)


def _outcome(run: Run) -> str:
    return f"{run.job.model} serves {run.model.origin.short} now"


async def undo(run: Run, why: str) -> None:
    """Puts the row back and ends what was started; the old replicas have served all along."""
    services, old = run.services, run.job.before
    if old is None or run.job.committed:
        return
    if now := services.store.models.find(old.name):
        # A fallback that was removed meanwhile does not come back.
        old = msgspec.structs.replace(old, fallbacks=now.fallbacks)
    if now != old:
        with services.store.transaction():
            event = _put_back(services, old, why)
        services.announce(event)
    await retire(services, run.new)
    _bring_back(run, old)


def _bring_back(run: Run, old: Model) -> None:
    """Starts again those of the old replicas that had ended to make room for the new."""
    services = run.services
    missing = old.replicas - sum(not replica.is_leaving for replica in services.fleet.of(old.name))
    if missing <= 0:
        return
    spec = services.spec(old)
    ids = tuple(services.fleet.new_id(spec) for _ in range(missing))
    # Before they run: undone once more, the job would take them for its own new ones.
    run.save(msgspec.structs.replace(run.job, replaced=(*run.job.replaced, *ids)))
    for replica in ids:
        services.fleet.start(spec, keep_trying=True, replica_id=replica)


def _put_back(services: Services, old: Model, why: str) -> EventView:
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
ROLLBACK = Recipe((catalog_rollback, replicas), _outcome, undo)
