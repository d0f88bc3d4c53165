"""The add and remove jobs: a model comes into the catalog, and leaves it."""

from llmgwd.domain.catalog import Model, check_new_name, names
from llmgwd.jobs.acquire import asked, checksums, repository, weights
from llmgwd.jobs.run import Run
from llmgwd.jobs.runner import Recipe
from llmgwd.jobs.succeed import start_missing
from llmgwd.jobs.take_out import retire
from llmgwd.protocol.messages import AddModel
from llmgwd.protocol.states import EventKind


async def catalog_add(run: Run) -> str:
    """Writes the model's row."""
    request = asked(run)
    assert isinstance(request, AddModel)
    assert run.origin is not None
    services = run.services
    with services.store.transaction():
        check_new_name(request.name, request.aliases, names(services.store.models.all()))
        run.model = Model(
            name=request.name,
            origin=run.origin,
            engine=request.engine,
            engine_args=request.engine_args,
            replicas=request.replicas,
            aliases=request.aliases,
            description=request.description,
        )
        services.store.models.put(run.model)
        event = services.log_event(run.job.by, EventKind.MODEL_ADDED, request.name, after=run.origin.short)
    services.announce(event)
    return ", ".join((request.name, *request.aliases))


async def replicas_add(run: Run) -> str:
    """Starts the model's replicas and waits until they answer."""
    await start_missing(run)
    await run.services.dataplane.publish()
    return ", ".join(f"{replica.id} ready at {replica.address}" for replica in run.replicas)


async def undo_add(run: Run, why: str) -> None:
    """Ends what was started and takes the row away again."""
    services = run.services
    if run.model is None:
        return
    with services.store.transaction():
        services.store.models.delete(run.model.name)
        event = services.log_event(
            "llmgw", EventKind.MODEL_REMOVED, run.model.name, before=run.model.origin.short, why=why
        )
    services.announce(event)
    await retire(services, services.fleet.of(run.model.name))


async def catalog_remove(run: Run) -> str:
    """Takes the model's row away; from here on it is unknown to new clients once the routes say so."""
    services = run.services
    with services.store.transaction():
        run.model = services.store.models.get(run.job.model)
        run.commit()
        services.store.models.delete(run.model.name)
        event = services.log_event(run.job.by, EventKind.MODEL_REMOVED, run.model.name, before=run.model.origin.short)
    services.announce(event)
    return run.model.name


async def routes_remove(run: Run) -> str:
    """Takes the name out of every gateway worker."""
    await run.services.dataplane.publish()
    return "no new requests"


async def replicas_remove(run: Run) -> str:
    """Drains and ends its replicas."""
    assert run.model is not None
    replicas = run.services.fleet.of(run.model.name)
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
