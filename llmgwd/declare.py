"""Declared models: what the configuration says is what the catalog has and the fleet runs."""

import logging
from collections.abc import Mapping

import anyio.abc
import msgspec

from llmgwd.config import EXTERNAL, DeclaredModel, Settings
from llmgwd.domain.catalog import Adapter, Model, Origin
from llmgwd.domain.errors import LlmgwError, unusable
from llmgwd.domain.names import check_new_name, fallbacks_of, names
from llmgwd.engines.adapters import check_takes_adapters, check_template
from llmgwd.engines.presets import PRESETS
from llmgwd.engines.templates import AdapterTemplate, Engine, check_argv, find_engine
from llmgwd.jobs.choices import check_choice, check_fits
from llmgwd.jobs.presence import forget
from llmgwd.jobs.services import Services
from llmgwd.jobs.take_out import retire
from llmgwd.jobs.upkeep import ensure_served
from llmgwd.protocol.messages import WeightsChoice
from llmgwd.protocol.states import EventKind, WeightsFormat
from llmgwd.protocol.views import EventView
from llmgwd.weights.adapters import find_local_adapter
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
        if name != EXTERNAL:
            check_argv(f"engines.{name}.argv", engine.argv)
        adapters = None
        if engine.adapters is not None:
            adapters = AdapterTemplate(**msgspec.structs.asdict(engine.adapters))
            check_template(f"engines.{name}.adapters", adapters)
        engines[name] = Engine(
            argv=engine.argv,
            health=engine.health if engine.argv else "",
            ready_timeout_s=float(engine.ready_timeout),
            env=engine.env,
            slots=engine.slots,
            probe_every_s=float(engine.probe_every),
            probe_timeout_s=float(engine.probe_timeout),
            weights=WeightsFormat(engine.weights) if engine.argv else WeightsFormat.NONE,
            own_name=engine.own_name,
            lists_itself=engine.lists_itself,
            first_answer_s=float(engine.first_answer),
            stop_grace_s=float(engine.stop_grace),
            adapters=adapters,
            gpus=engine.gpus,
        )
    return engines


def declared_models(settings: Settings, engines: Mapping[str, Engine], others: list[Model]) -> list[Model]:
    """The models of the configuration. Raises LlmgwError when they clash among each other or with `others`."""
    models: list[Model] = []
    for index, entry in enumerate(settings.models):
        try:
            check_new_name(entry.name, entry.aliases, tuple(entry.adapters), names([*others, *models]))
            origin = _origin(entry, engines)
            adapters = _adapters(entry, engines)
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
                origin=origin,
                engine=entry.engine,
                engine_args=entry.engine_args,
                replicas=len(origin.urls) or entry.scaling.min,
                aliases=entry.aliases,
                description=entry.description,
                declared=True,
                adapters=adapters,
                gpus=engines[entry.engine].gpus if entry.gpus is None else entry.gpus,
                fit_check=entry.fit_check,
            )
        )
    return _with_fallbacks(models, settings)


def _adapters(entry: DeclaredModel, engines: Mapping[str, Engine]) -> tuple[Adapter, ...]:
    """Raises LlmgwError for one that is not there or that the engine does not take."""
    if not entry.adapters:
        return ()
    check_takes_adapters(entry.engine, engines)
    wanted = engines[entry.engine].weights
    found = {name: find_local_adapter(str(path), wanted) for name, path in entry.adapters.items()}
    return tuple(Adapter(name, Origin(path=local.path)) for name, local in found.items())


def _with_fallbacks(models: list[Model], settings: Settings) -> list[Model]:
    """They fall back on each other only: what the file says must hold wherever it is read."""
    found: list[Model] = []
    for index, (model, entry) in enumerate(zip(models, settings.models, strict=True)):
        try:
            fallbacks = fallbacks_of(model.name, model.aliases, entry.fallbacks, models)
        except LlmgwError as error:
            why = f"{error.message}{' in this file' if error.code == 'no_such_model' else ''}"
            raise unusable("bad_config", f"models[{index}].fallbacks: {why}") from error
        found.append(msgspec.structs.replace(model, fallbacks=fallbacks))
    return found


def _origin(entry: DeclaredModel, engines: Mapping[str, Engine]) -> Origin:
    """Raises LlmgwError when what is declared does not go together, or is not there."""
    if find_engine(entry.engine, engines).is_external:
        if not entry.urls or entry.path is not None or entry.engine_args or entry.gpus:
            raise unusable("no_url", f"engine is {entry.engine}: expected urls, and no path, engine_args or gpus")
        key_file = None if entry.key_file is None else str(entry.key_file)
        check_choice(WeightsChoice(urls=entry.urls, served_name=entry.served_name, key_file=key_file))
        return Origin(urls=entry.urls, served_name=entry.served_name, key_file=key_file)
    if entry.urls or entry.served_name or entry.key_file:
        raise unusable("bad_engine", f"urls, served_name and key_file are for engine {EXTERNAL}, not {entry.engine}")
    if entry.path is None:
        raise unusable("no_weights", "path is missing")
    if not entry.path.exists():
        raise unusable("no_weights", f"path is {str(entry.path)!r}: there is no such file or folder")
    weights = find_local(entry.path)
    origin = Origin(path=weights.path, files=weights.files, size_bytes=weights.size_bytes)
    check_fits(entry.engine, engines, origin)
    return origin


async def declare(services: Services, wanted: list[Model], tasks: anyio.abc.TaskGroup) -> None:
    """At a start, brings catalog and fleet to the declared models.

    Raises LlmgwError, having changed nothing, as `write_down`.
    """
    await serve_declared(services, wanted, write_down(services, wanted), tasks, at_start=True)


def write_down(services: Services, wanted: list[Model]) -> list[Model]:
    """Brings the catalog to the declared models; those that are gone from it.

    Raises LlmgwError when it cannot be written: then nothing was changed.
    """
    store = services.store
    present = {model.name: model for model in store.models.all() if model.declared}
    gone = [model for name, model in present.items() if name not in {each.name for each in wanted}]
    changed = [model for model in wanted if present.get(model.name) != model]
    if not gone and not changed:
        # A database that takes nothing is no reason not to serve what it has.
        return []
    events: list[EventView] = []
    with store.transaction():
        for model in gone:
            events += forget(services, model, by=CONFIG)
        for model in changed:
            store.models.put(model)
            before = present[model.name].origin.short if model.name in present else ""
            what = EventKind.MODEL_UPDATED if before else EventKind.MODEL_ADDED
            events.append(services.log_event(CONFIG, what, model.name, before=before, after=model.origin.short))
    for event in events:
        services.announce(event)
    return gone


async def serve_declared(
    services: Services, wanted: list[Model], gone: list[Model], tasks: anyio.abc.TaskGroup, *, at_start: bool = False
) -> None:
    """Brings the fleet to what is written; one that did not change keeps its replicas.

    Returns when the routes are right. The old replicas of a changed model serve, in `tasks`, until its new ones do.
    What cannot be started or does not end is said and left: it holds nothing else up.
    """
    for model in wanted:
        try:
            # Its row may be the same while the engine that it names is another now.
            ensure_served(services, model, tasks, at_start=at_start)
        except LlmgwError as error:
            log.error("declared model not started name=%s why=%s", model.name, error.message)
    await services.dataplane.publish()
    try:
        await retire(services, [replica for model in gone for replica in services.fleet.of(model.name)])
    except LlmgwError as error:
        log.error("a model that is declared no more was not ended why=%s", error.message)
