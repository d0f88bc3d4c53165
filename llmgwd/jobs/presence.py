"""The add and remove jobs: a model comes into the catalog, and leaves it."""

from llmgwd.domain.catalog import Model, without_fallback
from llmgwd.domain.names import check_new_name, fallbacks_of, names
from llmgwd.jobs.acquire import asked
from llmgwd.jobs.adapters import checksums, repository, weights
from llmgwd.jobs.choices import new_row
from llmgwd.jobs.run import Run
from llmgwd.jobs.runner import Recipe
from llmgwd.jobs.services import Services
from llmgwd.jobs.succeed import start_missing
from llmgwd.jobs.take_out import retire
from llmgwd.protocol.messages import AddModel
from llmgwd.protocol.states import EventKind
from llmgwd.protocol.views import EventView


async def catalog_add(run: Run) -> str:
    """Writes the model's row."""
    request = asked(run)
    assert isinstance(request, AddModel)
    services = run.services
    if not run.job.written:
        others = services.store.models.all()
        adapters = tuple(adapter.name for adapter in request.adapters)
        check_new_name(request.name, request.aliases, adapters, names(others))
        fallbacks = fallbacks_of(request.name, request.aliases, request.fallbacks, others)
        row = new_row(request, run.origin, services.engines, fallbacks, run.job.adapters)
        with run.writing(written=True):
            services.store.models.put(row)
            event = services.log_event(run.job.by, EventKind.MODEL_ADDED, request.name, after=row.origin.short)
        services.announce(event)
    return ", ".join((request.name, *request.aliases))


async def replicas_add(run: Run) -> str:
    """Starts the model's replicas and waits until they answer."""
    await start_missing(run)
    await run.services.dataplane.publish()
    return ", ".join(f"{replica.id} ready at {replica.address}" for replica in run.new)


async def undo_add(run: Run, why: str) -> None:
    """Ends what was started and takes the row away again."""
    services, name = run.services, run.job.model
    if not run.job.written:
        return
    if services.store.models.find(name) is not None:
        with services.store.transaction():
            events = forget(services, run.model, by="llmgw", why=why)
        for event in events:
            services.announce(event)
    await retire(services, services.fleet.of(name))


async def catalog_remove(run: Run) -> str:
    """Takes the model's row away; from here on it is unknown to new clients once the routes say so."""
    services = run.services
    if not run.job.written:
        model = run.model
        with run.writing(written=True, committed=True, before=model):
            events = forget(services, model, by=run.job.by)
        for event in events:
            services.announce(event)
    return run.job.model


def forget(services: Services, model: Model, *, by: str, why: str = "") -> list[EventView]:
    """Takes a model out of the catalog and of the others' fallbacks; to be called in a transaction."""
    store = services.store
    store.models.delete(model.name)
    store.footprints.forget(model.name)
    events = [services.log_event(by, EventKind.MODEL_REMOVED, model.name, before=model.origin.short, why=why)]
    for other in without_fallback(store.models.all(), model.name):
        store.models.put(other)
        left, gone = ", ".join(other.fallbacks), f"{model.name} was removed"
        events.append(
            services.log_event(by, EventKind.FALLBACK_REMOVED, other.name, before=model.name, after=left, why=gone)
        )
    return events


async def routes_remove(run: Run) -> str:
    """Takes the name out of every gateway worker."""
    await run.services.dataplane.publish()
    return "no new requests"


async def replicas_remove(run: Run) -> str:
    """Drains and ends its replicas."""
    replicas = run.services.fleet.of(run.job.model)
    run.detail("draining")
    await retire(run.services, replicas)
    return f"stopped {len(replicas)}"


async def undo_remove(run: Run, why: str) -> None:
    """Before the row is gone there is nothing to undo; after it there is no way back."""


ADD = Recipe(
    (repository, weights, checksums, catalog_add, replicas_add),
    lambda run: f"{run.job.model} is served",
    undo_add,
)
REMOVE = Recipe(
    (catalog_remove, routes_remove, replicas_remove),
    lambda run: f"{run.job.model} is gone",
    undo_remove,
)
