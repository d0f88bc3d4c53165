"""Names completed from the running daemon, within a moment or not at all."""

import typer

from llmgw_ctl.client import Answer, connect
from llmgw_ctl.failures import CommandError
from llmgw_ctl.session import socket_path
from llmgwd.protocol.messages import Engines, Jobs, ListEngines, ListJobs, ListModels, Models, Request

# A person waits with a finger on the tab key.
COMPLETION_S = 0.1


def model_names(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    answer = _asked(ctx, ListModels(), Models)
    models = answer.models if answer else ()
    return [(model.name, model.description or model.engine) for model in models if model.name.startswith(incomplete)]


def job_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    answer = _asked(ctx, ListJobs(), Jobs)
    jobs = answer.jobs if answer else ()
    return [(job.id, f"{job.kind} of {job.model}, {job.state}") for job in jobs if job.id.startswith(incomplete)]


def engine_names(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    answer = _asked(ctx, ListEngines(), Engines)
    engines = answer.engines if answer else ()
    return [(engine.name, engine.program) for engine in engines if engine.name.startswith(incomplete)]


def _asked(ctx: typer.Context, request: Request, answer: type[Answer]) -> Answer | None:
    """The daemon's answer; None without a daemon, a quick answer or the permission to ask."""
    try:
        with connect(socket_path(ctx), COMPLETION_S) as connection:
            return connection.ask(request, answer, COMPLETION_S)
    except (CommandError, OSError):
        return None
