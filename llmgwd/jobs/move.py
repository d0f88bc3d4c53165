"""The update and rollback jobs: a model moves to other weights without a canary."""

from llmgwd.domain.catalog import Model, moved, moved_back
from llmgwd.domain.differences import how_it_runs_differs, only_runs_otherwise
from llmgwd.jobs.acquire import checksums, repository, weights
from llmgwd.jobs.run import Run
from llmgwd.jobs.runner import Recipe
from llmgwd.jobs.services import Services
from llmgwd.jobs.succeed import start_missing, stop_old
from llmgwd.jobs.take_out import retire
from llmgwd.protocol.states import EventKind, JobKind
from llmgwd.protocol.views import EventView


async def catalog_update(run: Run) -> str:
    """Moves the model's row to the new weights."""
    if not run.job.written:
        _put(run, moved(run.model, run.origin, run.model.engine_args), EventKind.MODEL_UPDATED)
    return _moved_words(run)


async def catalog_rollback(run: Run) -> str:
    """Moves the model's row back to its previous weights."""
    if not run.job.written:
        back = moved_back(run.model)
        run.services.spec(back)  # Raises when those weights are not on disk, before anything has moved.
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
    started = await start_missing(run)
    if not run.job.committed:
        with run.writing(committed=True):
            if run.job.kind is JobKind.ROLLBACK:
                _remember_left(run)
    return f"started {started}, stopped {await stop_old(run)} old"


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
    if services.store.models.find(old.name) != old:
        with services.store.transaction():
            event = _put_back(services, old, why)
        services.announce(event)
    await retire(services, run.new)


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
