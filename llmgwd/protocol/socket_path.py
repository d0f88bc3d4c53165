"""Where the control socket is: the same answer for the daemon, the command line and cron."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

SYSTEM_SOCKET = Path("/run/llmgw/llmgwd.sock")
MAX_PATH_BYTES = 108 if sys.platform == "linux" else 104


class SocketPathError(Exception):
    """The path cannot be a Unix socket's."""


def state_folder(environ: Mapping[str, str]) -> Path:
    """The daemon's state folder: `$LLMGW_STATE_DIR`, or the platform's own for `llmgw`."""
    if chosen := environ.get("LLMGW_STATE_DIR"):
        return Path(chosen)
    # Imported where it is needed: a command line that finds its socket elsewhere starts without it.
    from platformdirs import user_state_path

    return user_state_path("llmgw")


def control_socket(option: Path | None, environ: Mapping[str, str], run: Path = Path("/run")) -> Path:
    """The control socket's path, the first that applies of the documented places.

    The user's runtime folder is found by uid: cron sets no `XDG_RUNTIME_DIR`. Raises SocketPathError when the path is
    over the platform's limit.
    """
    return checked(_choose(option, environ, run))


def _choose(option: Path | None, environ: Mapping[str, str], run: Path) -> Path:
    if option is not None:
        return option
    if chosen := environ.get("LLMGW_SOCKET"):
        return Path(chosen)
    if (system := run / SYSTEM_SOCKET.relative_to("/run")).exists():
        return system
    runtime = run / "user" / str(os.getuid())
    if runtime.is_dir():
        return runtime / "llmgw" / "llmgwd.sock"
    return state_folder(environ) / "llmgwd.sock"


def checked(path: Path) -> Path:
    """The path itself. Raises SocketPathError when it is too long to bind or connect."""
    length = len(os.fsencode(path))
    # The limit counts the terminating NUL.
    if length >= MAX_PATH_BYTES:
        raise SocketPathError(
            f"socket path {path} is {length} bytes long, the limit here is {MAX_PATH_BYTES - 1}; "
            "give a shorter one with --socket or LLMGW_SOCKET"
        )
    return path
