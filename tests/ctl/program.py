"""The real `llmgw` as a process of its own: in pipes, or on a terminal."""

import codecs
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-m", "llmgw_ctl"]
DEADLINE_S = 20.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Ended(NamedTuple):
    status: int
    stdout: str
    stderr: str


def environment(socket: Path | None, **more: str) -> dict[str, str]:
    """What a plain login has, with no setting of the person who runs the tests."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONDONTWRITEBYTECODE") if name in os.environ}
    return kept | {"HOME": "/nonexistent"} | ({"LLMGW_SOCKET": str(socket)} if socket else {}) | more


def llmgw(*argv: str, socket: Path | None = None, env: dict[str, str] | None = None) -> Ended:
    ran = subprocess.run(
        [*PROGRAM, *argv],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env=environment(socket) if env is None else env,
        timeout=DEADLINE_S,
    )
    return Ended(ran.returncode, ran.stdout, ran.stderr)


class Running:
    """A started `llmgw` whose stderr is read as it comes."""

    def __init__(self, *argv: str, socket: Path) -> None:
        self._process = subprocess.Popen(
            [*PROGRAM, *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=environment(socket),
            preexec_fn=_takes_interrupts,
        )
        self._heard = ""

    def wait_for(self, words: str) -> None:
        assert self._process.stderr
        while words not in self._heard:
            line = self._process.stderr.readline()
            assert line, f"it ended before {words!r}: {self._heard}"
            self._heard += line

    def interrupt(self) -> Ended:
        self._process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> Ended:
        stdout, stderr = self._process.communicate(timeout=DEADLINE_S)
        return Ended(self._process.returncode, stdout, self._heard + stderr)


class OnTerminal:
    """`llmgw` on a pseudo-terminal; `text` is all it wrote, escape sequences included."""

    def __init__(self, *argv: str, socket: Path, columns: int = 100, rows: int = 50, **env: str) -> None:
        self.text = ""
        # What is read may end in the middle of a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = subprocess.Popen(
            [*PROGRAM, *argv],
            stdin=side,
            stdout=side,
            stderr=side,
            cwd=ROOT,
            env=environment(socket, **({"TERM": "xterm-256color"} | env)),
            start_new_session=True,
            preexec_fn=_takes_the_terminal,
        )
        os.close(side)

    def wait_for(self, words: str) -> None:
        until = time.monotonic() + DEADLINE_S
        while words not in self.text:
            assert self._read(until), f"it ended before {words!r}: {self.text}"

    def type(self, keys: str) -> None:
        os.write(self._main, keys.encode())

    def end(self) -> int:
        until = time.monotonic() + DEADLINE_S
        while self._read(until):
            pass
        os.close(self._main)
        return self._process.wait(DEADLINE_S)

    @property
    def lines(self) -> list[str]:
        """What was written, without escape sequences; what was drawn over what is a line each."""
        return ESCAPES.sub("", self.text).replace("\r\n", "\n").replace("\r", "\n").splitlines()

    def _read(self, until: float) -> bool:
        ready, _, _ = select.select([self._main], [], [], max(0, until - time.monotonic()))
        assert ready, f"nothing more within {DEADLINE_S} s: {self.text}"
        data = b""
        # The other side's last close reads as an error on Linux.
        with contextlib.suppress(OSError):
            data = os.read(self._main, 65536)
        self.text += self._decoder.decode(data)
        return bool(data)


def _takes_interrupts() -> None:
    # A test run in the background of a shell hands down that interrupts are ignored.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _takes_the_terminal() -> None:
    _takes_interrupts()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
