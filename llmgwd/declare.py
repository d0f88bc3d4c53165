"""Declared models: what the configuration says is what the catalog has and the fleet runs."""

from collections.abc import Mapping

from llmgwd.config import Settings
from llmgwd.domain.catalog import Model, Origin, check_new_name, names
from llmgwd.domain.errors import LlmgwError, unusable
from llmgwd.engines.templates import PRESETS, Engine, check_argv, find_engine
from llmgwd.jobs.services import Services
from llmgwd.jobs.take_out import drain_and_stop


def engines_of(settings: Settings) -> dict[str, Engine]:
    """The presets and the configuration's own. Raises LlmgwError for a template that cannot work."""
    engines = dict(PRESETS)
    for name, engine in settings.engines.items():
        check_argv(f"engines.{name}.argv", engine.argv)
        engines[name] = Engine(engine.argv, engine.health, engine.ready_timeout, engine.env)
    return engines


def declared_models(settings: Settings, engines: Mapping[str, Engine], others: list[Model]) -> list[Model]:
    """The models of the configuration. Raises LlmgwError when they clash among each other or with `others`."""
    models: list[Model] = []
    for index, entry in enumerate(settings.models):
        try:
            check_new_name(entry.name, entry.aliases, names([*others, *models]))
            find_engine(entry.engine, engines)
        except LlmgwError as error:
            raise unusable("bad_config", f"models[{index}]: {error.message}") from error
        models.append(
            Model(
                name=entry.name,
                origin=Origin(path=str(entry.path)),
                engine=entry.engine,
                engine_args=entry.engine_args,
                replicas=entry.scaling.min,
                aliases=entry.aliases,
                description=entry.description,
                declared=True,
            )
        )
    return models


async def declare(services: Services, wanted: list[Model]) -> None:
    """Brings catalog and fleet to the declared models; one that did not change keeps its replicas."""
    store, fleet = services.store, services.fleet
    present = {model.name: model for model in store.models.all() if model.declared}
    coming = {model.name: model for model in wanted}
    gone = [model for name, model in present.items() if coming.get(name) != model]
    with store.transaction():
        for model in gone:
            store.models.delete(model.name)
        for model in wanted:
            store.models.put(model)
    for model in gone:
        for replica in fleet.of(model.name):
            await drain_and_stop(services, replica)
    for model in wanted:
        if not fleet.of(model.name):
            start(services, model)
    await services.dataplane.publish()


def start(services: Services, model: Model) -> None:
    """Starts a row's replicas, which are tried again until they are ready."""
    spec = services.spec(model)
    for _ in range(model.replicas):
        services.fleet.start(spec, keep_trying=True)
