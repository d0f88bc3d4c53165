"""`llmgw`: the commands put together, and how they end."""

import os
import sys
from typing import Annotated

import typer

from llmgw_ctl import house, jobs, model
from llmgw_ctl.failures import CommandError
from llmgw_ctl.output import complain, is_lively, result
from llmgw_ctl.quick import quicken

PROGRAM = "llmgw"
COMPLETE_VARIABLE = "_LLMGW_COMPLETE"


def show_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        result(f"{PROGRAM} {version(PROGRAM)}")
    except PackageNotFoundError:
        result(f"{PROGRAM}, run from a source tree that is not installed")
    raise typer.Exit


def root(
    socket: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="The daemon's control socket; $LLMGW_SOCKET or the usual places when not given."
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=show_version)
    ] = False,
) -> None:
    """Serve your own models, and move them to newer weights without anyone noticing."""


def build(argv: list[str], pretty: bool) -> typer.Typer:
    """The application. `pretty` draws help and usage errors in panels, for a terminal."""
    # Typer's completion options cost a listing more than its round trip; they belong before any command.
    completes = COMPLETE_VARIABLE in os.environ or "ctl" not in argv
    app = typer.Typer(
        add_completion=completes,
        rich_markup_mode="rich" if pretty else None,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(root)
    ctl = typer.Typer(no_args_is_help=True, help="Ask the daemon, and tell it what to do.")
    app.add_typer(ctl, name="ctl")
    ctl.add_typer(model.app, name="model")
    ctl.add_typer(jobs.app, name="jobs")
    ctl.command()(house.status)
    ctl.command()(house.events)
    return app


def run() -> None:
    argv = sys.argv[1:]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that cannot show a tick shows a question mark.
            stream.reconfigure(errors="replace")
    command = typer.main.get_command(build(argv, pretty=is_lively(sys.stdout) and is_lively(sys.stderr)))
    quicken(command)
    try:
        command(prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE)
    except CommandError as error:
        complain(error, as_document="--json" in argv)
        sys.exit(error.status)
