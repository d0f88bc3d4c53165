"""From the root options to a connection."""

import os
from pathlib import Path

import typer

from llmgw_ctl.client import HELLO_S, Connection, connect
from llmgw_ctl.failures import CommandError
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.socket_path import SocketPathError, control_socket


def socket_path(ctx: typer.Context) -> Path:
    """Where the daemon listens, by `--socket` or the documented places. Raises CommandError for an impossible path."""
    option = ctx.find_root().params.get("socket")
    try:
        return control_socket(Path(option) if option else None, os.environ)
    except SocketPathError as error:
        raise CommandError(str(error), status=ExitStatus.USAGE) from error


def daemon(ctx: typer.Context, timeout_s: float = HELLO_S) -> Connection:
    return connect(socket_path(ctx), timeout_s)
