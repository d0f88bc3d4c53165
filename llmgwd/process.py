"""Processes that the daemon starts: in groups of their own, told apart for ever, ended as a whole."""

import contextlib
import logging
import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, STDOUT

import anyio
import anyio.abc
import psutil

log = logging.getLogger(__name__)

KILL_WAIT_S = 5.0
MARK = "LLMGW_CHILD_OF"
HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
MOST_WORDS = 300
"""Characters of a log line in a message."""
TROUBLE = re.compile(r"error|fail|cannot|out of memory|do(es)? not", re.IGNORECASE)


async def spawn(argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> anyio.abc.Process:
    """Starts a program in a process group of its own, its output appended to `log`. Raises OSError."""
    with log.open("ab") as output:
        return await anyio.open_process(
            list(argv),
            stdin=DEVNULL,
            stdout=output,
            stderr=STDOUT,
            env={**_environment(), **(env or {})},
            start_new_session=True,
        )


def _environment() -> dict[str, str]:
    """The daemon's own without the hub's token, which is nothing for an engine to have."""
    return {name: value for name, value in os.environ.items() if name not in HUB_TOKENS}


def identity(pid: int) -> str | None:
    """What tells this process from a later one with the same pid; None when it is gone.

    On Linux the boot's id and the start in clock ticks since boot, which no change of the clock moves.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The name, in parentheses, may itself hold spaces and parentheses; field 22 counts from after it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else f"{boot}:{fields[19]}"
    except FileNotFoundError:
        pass
    except (ProcessLookupError, IndexError):
        return None
    try:
        return None if Path("/proc").is_dir() else str(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None


def mark(state: Path) -> dict[str, str]:
    """The environment that every process of the daemon on this state folder bears, and its children inherit."""
    return {MARK: str(state.resolve())}


def marked(state: Path) -> list[tuple[int, str]]:
    """The processes that bear the mark of this state folder, each with its identity.

    A daemon killed between starting a process and writing its pid down has left one that only this finds.
    """
    found = []
    for each in psutil.process_iter():
        try:
            bears = each.environ().get(MARK) == mark(state)[MARK]
        except psutil.Error:
            continue
        name = identity(each.pid) if bears and each.pid != os.getpid() else None
        if name is not None:
            found.append((each.pid, name))
    return found


async def end(pid: int, name: str | None, grace_s: float) -> bool:
    """Ends the process group led by `pid`, if that is still the process called `name` (see `identity`).

    TERM, up to `grace_s` for the leader to end, then KILL for all that is left of the group. Whether it is gone.
    """
    alive = identity(pid)
    if name is None or alive not in (name, None):
        return True
    if alive == name:
        _signal_group(pid, signal.SIGTERM)
        await _gone(pid, name, grace_s)
    # Children that outlived their leader too: no new process is given a group's id while the group lives.
    _signal_group(pid, signal.SIGKILL)
    return await _gone(pid, name, KILL_WAIT_S)


async def end_marked(state: Path, grace_s: float) -> None:
    """Ends every process that bears the mark of this state folder."""
    async with anyio.create_task_group() as tasks:
        for pid, name in marked(state):
            log.info("ending what was left running pid=%d", pid)
            tasks.start_soon(end, pid, name, grace_s)


async def _gone(pid: int, name: str, within_s: float) -> bool:
    with anyio.move_on_after(within_s):
        while identity(pid) == name:  # noqa: ASYNC110 - nothing signals the end of a process that is not our child
            await anyio.sleep(0.02)
    return identity(pid) != name


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        # A group's id is its leader's pid: each was started as a leader.
        os.killpg(pid, number)


def last_words(log: Path, lines: int = 20, most_bytes: int = 16384) -> str:
    """What a program's log says of its end: the first of its last lines that names a trouble, else the last one."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - most_bytes))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "it left no log"
    said = [line.strip() for line in text.splitlines() if line.strip()][-lines:]
    if not said:
        return "it said nothing"
    found = next((line for line in said if TROUBLE.search(line)), said[-1])
    return found if len(found) <= MOST_WORDS else found[: MOST_WORDS - 1] + "…"
