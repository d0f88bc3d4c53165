"""What would be run, before anything is: engines with their command lines, and what an `add` or `canary` would do."""

import msgspec

from llmgwd.control.show import origin_view
from llmgwd.domain.catalog import Model
from llmgwd.domain.differences import what_differs
from llmgwd.domain.errors import refused
from llmgwd.domain.jobs import Job
from llmgwd.domain.names import fallbacks_of
from llmgwd.engines.fleet import HOST
from llmgwd.engines.templates import find_engine, find_program, program, slots
from llmgwd.jobs import acquire, adapters
from llmgwd.jobs.choices import check_fits, new_row, wanted_row
from llmgwd.jobs.room import check_before_fetch
from llmgwd.jobs.run import NothingToDo, Run
from llmgwd.jobs.services import Services
from llmgwd.protocol.messages import AddModel, StartCanary
from llmgwd.protocol.states import JobKind
from llmgwd.protocol.views import EngineView, FileView, PreviewView
from llmgwd.weights.progress import Cancelled


def engine_view(services: Services, name: str, model: Model | None = None) -> EngineView:
    """An engine as it is written, or as it would serve a model. Raises LlmgwError when it cannot."""
    engine = find_engine(name, services.engines)
    row = None
    if model is not None:
        check_fits(name, services.engines, model.origin)
        args = model.engine_args if name == model.engine else ()
        row = msgspec.structs.replace(model, engine=name, engine_args=args)
    spec = services.spec(row, fetched=False) if row is not None else None
    return EngineView(
        name=name,
        configured=name in services.settings.engines,
        # Its port and its id are known when it is started.
        argv=engine.argv if spec is None else tuple(spec.command(HOST, "{port}", "{replica}", spec.gpus)),
        env=tuple(sorted(engine.env)),
        health=engine.health,
        ready_timeout_s=engine.ready_timeout_s,
        slots=slots(engine, spec.engine_args if spec else ()),
        weights=engine.weights,
        asked_as=spec.served_name if spec else engine.own_name,
        program=program(engine),
        program_path=find_program(engine),
        models=tuple(each.name for each in services.store.models.all() if each.engine == name),
    )


async def preview(services: Services, request: AddModel | StartCanary, by: str) -> PreviewView:
    """Asks the hub, and fetches, writes and starts nothing. Raises LlmgwError as the verb would before it fetches."""
    kind = JobKind.ADD if isinstance(request, AddModel) else JobKind.CANARY
    # A job that is never written: its first step only looks.
    run = Run(Job("preview", kind, request.name, by, services.now(), msgspec.msgpack.encode(request)), services)
    run.cancel_flag = services.stopping
    newer: bool | None = True
    look = adapters.repository if isinstance(request, AddModel) else acquire.repository
    try:
        summary = str(await look(run))
        await check_before_fetch(run, request)
    except NothingToDo as nothing:
        newer, summary = False, str(nothing)
    except Cancelled as cancelled:
        raise refused(
            "stopping", "the daemon is stopping", hint="ask again once it has been started again"
        ) from cancelled
    if isinstance(request, AddModel):
        fallbacks = fallbacks_of(request.name, request.aliases, request.fallbacks, services.store.models.all())
        row, changes = new_row(request, run.origin, services.engines, fallbacks, run.job.adapters), ""
    else:
        model = services.store.models.get(request.name)
        row = wanted_row(request, model, run.origin, services.engines)
        changes = what_differs(model, row)
        if newer and request.weights.path is not None:
            newer = None
    library = services.library
    origins = (run.origin, *(adapter.origin for adapter in run.job.adapters))
    contents = [file for origin in origins if origin.repo for file in origin.contents]
    files = tuple(FileView(file.path, file.size_bytes, library.needed_bytes([file])) for file in contents)
    return PreviewView(
        name=row.name,
        newer=newer,
        summary=summary,
        origin=origin_view(run.origin),
        files=files,
        fetch_bytes=library.needed_bytes(contents),
        engine=engine_view(services, row.engine, row),
        changes=changes,
    )
