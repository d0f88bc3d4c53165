"""Replicas' log files, read where they are and followed as they grow."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from llmgw_ctl.client import Connection
from llmgw_ctl.failures import CommandError
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.messages import FindLogs, Logs

LOOK_S = 0.25
# New replicas bring new files: the daemon is asked again this often.
ASK_S = 2.0


def print_logs(name: str, paths: Sequence[str], followed_by: Connection | None) -> None:
    """Copies the files to stdout, with a heading where there are several; with a connection it goes on until Ctrl-C."""
    if not paths:
        raise CommandError(
            f"{name} has no log files: its engine is not one that llmgwd starts, or has not started yet",
            f"`llmgw ctl model show {name}` has its replicas",
            ExitStatus.UNKNOWN,
        )
    reader = LogReader()
    reader.copy_new(paths, starting=True)
    if followed_by is None:
        return
    asked = time.monotonic()
    while True:
        time.sleep(LOOK_S)
        if time.monotonic() - asked >= ASK_S:
            paths = followed_by.ask(FindLogs(name), Logs).paths or paths
            asked = time.monotonic()
        reader.copy_new(paths)


class LogReader:
    """Remembers how far each file was read, and which was printed last."""

    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}
        self._printed = ""

    def copy_new(self, paths: Sequence[str], starting: bool = False) -> None:
        """Prints what is new in the files. At the start, a file that cannot be read is an error."""
        for path in paths:
            try:
                with Path(path).open("rb") as file:
                    self._copy(path, file, headed=len(paths) > 1 or len(self._offsets) > 1)
            except OSError as error:
                if starting:
                    raise _unreadable(path, error) from error

    def _copy(self, path: str, file: BinaryIO, headed: bool) -> None:
        size = file.seek(0, 2)
        offset = self._offsets.get(path, 0)
        # A file that shrank was started anew.
        file.seek(offset if offset <= size else 0)
        out = sys.stdout.buffer
        first = True
        while block := file.read(64 * 1024):
            if first and headed and self._printed != path:
                out.write(b"%s==> %s <==\n" % (b"\n" if self._printed else b"", path.encode()))
            self._printed, first = path, False
            out.write(block)
        self._offsets[path] = file.tell()
        out.flush()


def _unreadable(path: str, error: OSError) -> CommandError:
    status = ExitStatus.NOT_PERMITTED if isinstance(error, PermissionError) else ExitStatus.FAILED
    return CommandError(f"cannot read the log {path}: {error.strerror}", status=status)
