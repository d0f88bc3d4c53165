"""Declared models: what the configuration says is what the catalog has and the fleet runs."""

import logging
from collections.abc import Mapping

import anyio.abc

from llmgwd.config import Settings
from llmgwd.domain.catalog import Model, Origin, check_new_name, names
from llmgwd.domain.errors import LlmgwError, unusable
from llmgwd.engines.templates import PRESETS, Engine, check_argv, find_engine
from llmgwd.jobs.services import Services
from llmgwd.jobs.take_out import retire
from llmgwd.jobs.upkeep import ensure_served
from llmgwd.protocol.states import EventKind
from llmgwd.weights.local import find_local

log = logging.getLogger(__name__)

CONFIG = "configuration"
"""Who changes declared models, in the event log."""


def check_engines_kept(engines: Mapping[str, Engine], models: list[Model]) -> None:
    """Raises LlmgwError when a model is left without its engine."""
    for model in models:
        if model.engine not in engines:
            raise unusable("bad_config", f"engines.{model.engine} is gone, and {model.name} runs on it")


def engines_of(settings: Settings) -> dict[str, Engine]:
    """The presets and the configuration's own. Raises LlmgwError for a template that cannot work."""
    engines = dict(PRESETS)
    for name, engine in settings.engines.items():
        check_argv(f"engines.{name}.argv", engine.argv)
        engines[name] = Engine(
            argv=engine.argv,
            health=engine.health,
            ready_timeout_s=float(engine.ready_timeout),
            env=engine.env,
            slots=engine.slots,
            probe_every_s=float(engine.probe_every),
            probe_timeout_s=float(engine.probe_timeout),
        )
    return engines


def declared_models(settings: Settings, engines: Mapping[str, Engine], others: list[Model]) -> list[Model]:
    """The models of the configuration. Raises LlmgwError when they clash among each other or with `others`."""
    models: list[Model] = []
    for index, entry in enumerate(settings.models):
        try:
            check_new_name(entry.name, entry.aliases, names([*others, *models]))
            find_engine(entry.engine, engines)
            if not entry.path.exists():
                raise unusable("no_weights", f"path is {str(entry.path)!r}: there is no such file or folder")
            weights = find_local(entry.path.absolute())
        except LlmgwError as error:
            raise unusable("bad_config", f"models[{index}]: {error.message}") from error
        except (OSError, ValueError) as error:
            # What may not be looked into, and names that no file can have.
            why = error.strerror if isinstance(error, OSError) else error
            message = f"models[{index}].path is {str(entry.path)!r}, which cannot be looked at: {why}"
            raise unusable("bad_config", message) from error
        models.append(
            Model(
                name=entry.name,
                origin=Origin(path=weights.path, files=weights.files, size_bytes=weights.size_bytes),
                engine=entry.engine,
                engine_args=entry.engine_args,
                replicas=entry.scaling.min,
                aliases=entry.aliases,
                description=entry.description,
                declared=True,
            )
        )
    return models


async def declare(services: Services, wanted: list[Model], tasks: anyio.abc.TaskGroup) -> None:
    """Brings catalog and fleet to the declared models. Raises LlmgwError, having changed nothing, as `write_down`."""
    await serve_declared(services, wanted, write_down(services, wanted), tasks)


def write_down(services: Services, wanted: list[Model]) -> list[Model]:
    """Brings the catalog to the declared models; those that are gone from it.

    Raises LlmgwError when it cannot be written: then nothing was changed.
    """
    store = services.store
    present = {model.name: model for model in store.models.all() if model.declared}
    gone = [model for name, model in present.items() if name not in {each.name for each in wanted}]
    changed = [model for model in wanted if present.get(model.name) != model]
    events = []
    if not gone and not changed:
        # A database that takes nothing is no reason not to serve what it has.
        return []
    with store.transaction():
        for model in gone:
            store.models.delete(model.name)
            events.append(services.log_event(CONFIG, EventKind.MODEL_REMOVED, model.name, before=model.origin.short))
        for model in changed:
            store.models.put(model)
            before = present[model.name].origin.short if model.name in present else ""
            what = EventKind.MODEL_UPDATED if before else EventKind.MODEL_ADDED
            events.append(services.log_event(CONFIG, what, model.name, before=before, after=model.origin.short))
    for event in events:
        services.announce(event)
    return gone


async def serve_declared(
    services: Services, wanted: list[Model], gone: list[Model], tasks: anyio.abc.TaskGroup
) -> None:
    """Brings the fleet to what is written; one that did not change keeps its replicas.

    Returns when the routes are right. The old replicas of a changed model serve, in `tasks`, until its new ones do.
    What cannot be started or does not end is said and left: it holds nothing else up.
    """
    for model in wanted:
        try:
            # Its row may be the same while the engine that it names is another now.
            ensure_served(services, model, tasks)
        except LlmgwError as error:
            log.error("declared model not started name=%s why=%s", model.name, error.message)
    await services.dataplane.publish()
    try:
        await retire(services, [replica for model in gone for replica in services.fleet.of(model.name)])
    except LlmgwError as error:
        log.error("a model that is declared no more was not ended why=%s", error.message)
