"""`llmgw`: the commands put together, and how they end."""

import os
import shutil
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from llmgw_ctl import engines, house, jobs, model, shelf
from llmgw_ctl.failures import CommandError
from llmgw_ctl.output import complain, is_lively, result
from llmgw_ctl.quick import quicken
from llmgwd.protocol.exit_status import ExitStatus

PROGRAM = "llmgw"
COMPLETE_VARIABLE = "_LLMGW_COMPLETE"
PANEL_COLUMNS = 80


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
    ctl.add_typer(shelf.app, name="weights")
    ctl.add_typer(engines.app, name="engines")
    ctl.command()(house.status)
    ctl.command()(house.events)
    return app


def has_room_for_panels() -> bool:
    """Whether help goes to a terminal wide enough for Typer's panels; in a narrow one they cut options' names."""
    lively = is_lively(sys.stdout) and is_lively(sys.stderr)
    return lively and shutil.get_terminal_size().columns >= PANEL_COLUMNS


def prepare_streams() -> None:
    """Makes stdout and stderr fit for any words, and for a caller that closed them."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open for as long as the program runs
        elif isinstance(stream, TextIOWrapper):
            # A terminal that cannot show a tick shows a question mark.
            stream.reconfigure(errors="replace")


def run() -> None:
    argv = sys.argv[1:]
    prepare_streams()
    command = typer.main.get_command(build(argv, pretty=has_room_for_panels()))
    quicken(command)
    try:
        command(prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE)
    except CommandError as error:
        complain(error, as_document="--json" in argv)
        sys.exit(error.status)
    except OSError as error:
        complain(CommandError(f"{error.strerror or error}: {error.filename or 'standard output'}"), as_document=False)
        # What stdout did not take is still buffered, and would fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitStatus.FAILED)
