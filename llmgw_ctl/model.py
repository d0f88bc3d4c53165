"""`llmgw ctl model …`: the catalog."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from llmgw_ctl import canary
from llmgw_ctl.completion import model_names
from llmgw_ctl.failures import CommandError
from llmgw_ctl.options import (
    AllowUnsafe,
    AnyName,
    Detach,
    DryRun,
    EngineArgs,
    File,
    Gpus,
    Json,
    KeyFile,
    LocalPath,
    Name,
    NewName,
    NoFitCheck,
    Quant,
    Quiet,
    Repo,
    Revision,
    ServedName,
    Urls,
    adapter_choice,
    at_least_one,
    check_dry_run,
    weights,
)
from llmgw_ctl.output import document, note
from llmgw_ctl.session import daemon
from llmgw_ctl.verbs import Manner, carry_out, tell_preview
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.messages import (
    AddModel,
    FindLogs,
    ListModels,
    Logs,
    Models,
    RemoveModel,
    Rollback,
    ShowModel,
    Update,
    Updates,
)
from llmgwd.protocol.views import UpdateView

app = typer.Typer(no_args_is_help=True, help="Models: what is served, from which weights, and their canaries.")


@app.command()
def add(
    ctx: typer.Context,
    name: NewName,
    repo: Repo = None,
    revision: Revision = None,
    file: File = None,
    quant: Quant = None,
    path: LocalPath = None,
    allow_unsafe: AllowUnsafe = False,
    url: Urls = None,
    served_name: ServedName = None,
    key_file: KeyFile = None,
    engine: Annotated[str, typer.Option(help="How the weights are served.")] = "llamacpp",
    engine_arg: EngineArgs = None,
    replicas: Annotated[int, typer.Option(help="How many engines run.", callback=at_least_one)] = 1,
    alias: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Another name for it; repeat it for more.")
    ] = None,
    fallback: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A model that answers when this one cannot; repeat it for more, in order.",
            autocompletion=model_names,
        ),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH|ORG/REPO[@REVISION]",
            help="A LoRA adapter, asked for as MODEL:NAME; repeat it for more. A path begins with / . or ~",
        ),
    ] = None,
    description: Annotated[str, typer.Option(help="A word on what it is for.", show_default=False)] = "",
    gpus: Gpus = None,
    no_fit_check: NoFitCheck = False,
    dry_run: DryRun = False,
    detach: Detach = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Fetch a model and serve it."""
    if repo is None and path is None and not url:
        raise typer.BadParameter("weights come from a repository or from this machine; give --repo or --path")
    request = AddModel(
        name=name,
        weights=weights(repo, revision, file, quant, path, allow_unsafe, url, served_name, key_file),
        engine=engine,
        engine_args=tuple(engine_arg or ()),
        replicas=replicas,
        aliases=tuple(alias or ()),
        fallbacks=tuple(fallback or ()),
        adapters=tuple(map(adapter_choice, adapter or ())),
        description=description,
        gpus=gpus,
        fit_check=not no_fit_check,
    )
    manner = Manner(json, quiet, detach)
    check_dry_run(dry_run, {"--detach": detach, "--quiet": quiet})
    with daemon(ctx) as connection:
        if dry_run:
            tell_preview(connection, request, manner)
        else:
            carry_out(connection, request, manner)


@app.command("list")
def list_models(ctx: typer.Context, json: Json = False) -> None:
    """Show all models."""
    with daemon(ctx) as connection:
        models = connection.ask(ListModels(), Models).models
    if json:
        document(models)
        return
    from llmgw_ctl.render.models import model_list
    from llmgw_ctl.render.screen import draw

    draw(model_list(models))


@app.command()
def updates(ctx: typer.Context, name: AnyName = None, json: Json = False) -> None:
    """Ask the hub what is newer than what the models serve."""
    found: Sequence[UpdateView] = ()
    with daemon(ctx) as connection:
        for answer in connection.updates(name):
            if isinstance(answer, Updates):
                found = answer.updates
            elif name is None and answer.repo is not None and not json:
                note(f"{answer.model}: {answer.summary}")
    if json:
        document(found)
        return
    from llmgw_ctl.render.models import update_list
    from llmgw_ctl.render.screen import draw

    draw(update_list(found))


@app.command()
def show(ctx: typer.Context, name: Name, json: Json = False) -> None:
    """Show one model with its weights and replicas."""
    with daemon(ctx) as connection:
        (model,) = connection.ask(ShowModel(name), Models).models
    if json:
        document(model)
        return
    from llmgw_ctl.render.models import model_page
    from llmgw_ctl.render.screen import draw

    draw(model_page(model))


@app.command()
def logs(
    ctx: typer.Context,
    name: Name,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written from now on.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the paths of the log files as JSON.")] = False,
) -> None:
    """Read what a model's engines wrote."""
    from llmgw_ctl.logs import print_logs

    if json and follow:
        raise typer.BadParameter("--json prints the log files' paths, which --follow has no use for")
    with daemon(ctx) as connection:
        paths = connection.ask(FindLogs(name), Logs).paths
        if json:
            document(paths)
        else:
            print_logs(name, paths, connection if follow else None)


@app.command()
def remove(
    ctx: typer.Context,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    detach: Detach = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Stop serving a model and forget it."""
    with daemon(ctx) as connection:
        if not yes:
            confirm_removal(name)
        carry_out(connection, RemoveModel(name), Manner(json, quiet, detach))


def confirm_removal(name: str) -> None:
    """Raises CommandError unless a person at the terminal says yes."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(
            f"removing {name} wants a yes, and there is no terminal to ask on", "give --yes", ExitStatus.USAGE
        )
    if not typer.confirm(f"Stop serving {name} and forget it?", err=True):
        raise CommandError(f"{name} was not removed", code="declined")


canary.register(app)


@app.command()
def update(
    ctx: typer.Context,
    name: Name,
    revision: Revision = None,
    file: File = None,
    quant: Quant = None,
    path: LocalPath = None,
    allow_unsafe: AllowUnsafe = False,
    url: Urls = None,
    served_name: ServedName = None,
    key_file: KeyFile = None,
    no_fit_check: NoFitCheck = False,
    detach: Detach = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Move a model to its newest weights without a canary."""
    choice = weights(None, revision, file, quant, path, allow_unsafe, url, served_name, key_file)
    request = Update(name, choice, not no_fit_check)
    with daemon(ctx) as connection:
        carry_out(connection, request, Manner(json, quiet, detach))


@app.command()
def rollback(
    ctx: typer.Context,
    name: Name,
    no_fit_check: NoFitCheck = False,
    detach: Detach = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Move a model back to the weights it had before."""
    with daemon(ctx) as connection:
        carry_out(connection, Rollback(name, not no_fit_check), Manner(json, quiet, detach))
