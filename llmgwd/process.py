"""Processes that the daemon starts, or finds running: leaders of their own groups, told apart for ever, ended whole."""

import contextlib
import errno
import logging
import os
import re
import signal
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread
import psutil

log = logging.getLogger(__name__)

KILL_WAIT_S = 5.0
POLL_S = 0.1
"""How often a process is looked at where the system has no pidfd to wait on."""
BOOT = Path("/proc/sys/kernel/random/boot_id")
OWNER, CHILD = "LLMGW_CHILD_OF", "LLMGW_CHILD"
NOT_PASSED_ON = frozenset(
    {
        *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        *("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"),
    }
)
"""The hub's token is nothing for an engine to have, nor is what the service manager says to the daemon alone."""
MOST_WORDS = 300
"""Characters of a log line in a message."""
TRACEBACK_PLACE = re.compile(r'File "[^"]*", line \d+')
TROUBLE = re.compile(r"error|fail|cannot|out of memory|do(es)? not", re.IGNORECASE)
PIDFD_SIGNAL_PROCESS_GROUP = 4
"""For pidfd_send_signal, from Linux 6.9 on: the group that this process leads."""


class Mark(NamedTuple):
    """What the environment of every process of the daemon bears, and its children inherit."""

    state: Path
    child: str
    """The id of the replica or worker."""

    @property
    def env(self) -> dict[str, str]:
        return {OWNER: str(self.state.resolve()), CHILD: self.child}


class Found(NamedTuple):
    """A running process that bears the mark of a state folder."""

    pid: int
    identity: str
    child: str


class Process:
    """One that leads a group of its own: a child of this daemon, or one that an earlier life of it started.

    It is held by a pidfd where the system has them, so that no signal can reach a later process with the same pid.
    Only the event loop's thread uses that descriptor: another could use its number after it was closed.
    """

    def __init__(
        self,
        pid: int,
        identity: str,
        mark: Mark,
        popen: "subprocess.Popen[bytes] | None" = None,
        *,
        has_ended: bool = False,
    ) -> None:
        self.pid = pid
        self.identity = identity
        self._mark = mark
        self._popen = popen
        self._pidfd = None if has_ended else _pidfd(pid)
        self._leads = has_ended or popen is not None or _leads(pid)
        self._ending = anyio.Lock()
        self._is_gone = False
        """Whether `end` has seen that nothing is left."""

    @property
    def returncode(self) -> int | None:
        """None while it runs, and for ever when it is not our child."""
        return self._popen.poll() if self._popen is not None else None

    @property
    def is_running(self) -> bool:
        return self.returncode is None if self._popen is not None else identity(self.pid) == self.identity

    async def wait(self) -> int | None:
        """Returns its `returncode` once it has ended."""
        if self._pidfd is not None and self.is_running:
            # Each waiter has its own descriptor: one can be waited on by one task only.
            waited_on = os.dup(self._pidfd)
            try:
                await anyio.wait_readable(waited_on)
            finally:
                os.close(waited_on)
        while self.is_running:  # noqa: ASYNC110 - nothing signals the end of a stranger where there is no pidfd
            await anyio.sleep(POLL_S)
        return self.returncode

    def terminate(self) -> None:
        """Asks the process, and none of its children, to end."""
        self._signal(signal.SIGTERM, group=False)

    async def end(self, grace_s: float) -> bool:
        """Ends all of it, which may be what its leader left behind. Whether it is gone, its memory with it.

        TERM to the group, up to `grace_s` for the leader to end, then KILL for it and for all that is left: of its
        group, of its session, and what has left both and still bears its mark. Who asks meanwhile waits for that.
        """
        # Two at once would send signals and scan the system side by side, one of them by what the other has let go.
        async with self._ending:
            self._is_gone = self._is_gone or await self._end(grace_s)
            return self._is_gone

    async def _end(self, grace_s: float) -> bool:
        if self.is_running:
            self._signal(signal.SIGTERM)
            with anyio.move_on_after(grace_s):
                await self.wait()
        self._signal(signal.SIGKILL)
        with anyio.move_on_after(KILL_WAIT_S):
            await self.wait()
            while await anyio.to_thread.run_sync(self._kill_rest):  # noqa: ASYNC110 - nothing signals their end
                await anyio.sleep(0.02)
            self._close()
            return True
        return False

    def members(self) -> dict[int, str]:
        """By pid, the identities of all of it that runs; looks at every process there is."""
        found = {each.pid: each.identity for each in marked(self._mark.state) if each.child == self._mark.child}
        # A child may have lost its mark: one that gives itself a title writes it over its environment.
        return found | {pid: name for pid in psutil.pids() if self._is_led(pid) and (name := identity(pid)) is not None}

    def _kill_rest(self) -> bool:
        """Sends KILL to what is left of it, each by itself; whether there was anything."""
        rest = self.members()
        for pid, name in rest.items():
            left = find(pid, name, self._mark)
            # Looked at again while it is held: the pid may have become another's.
            if left is not None:
                left._signal(signal.SIGKILL, group=False)
                left._close()
        return bool(rest)

    def _is_led(self, pid: int) -> bool:
        """Whether that process is in the group or session of this one, which is there or has ended.

        As long as it has members no other process is given the pid. So if another has it now, none is left; nor can
        there be any since the machine was started anew.
        """
        if not self._leads or (self._popen is None and not self.identity.startswith(_boot())):
            return False
        with contextlib.suppress(OSError):
            return self.pid in (os.getpgid(pid), os.getsid(pid)) and identity(self.pid) in (None, self.identity)
        return False

    def _signal(self, number: int, *, group: bool = True) -> bool:
        """Whether there was somebody to take it."""
        group = group and self._leads
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is None or not self._signal_by_pidfd(self._pidfd, number, group=group):
                # The group's id is its leader's pid, which is nobody else's as long as the leader is there.
                if not self.is_running:
                    return False
                (os.killpg if group else os.kill)(self.pid, number)
            return True
        return False

    def _signal_by_pidfd(self, pidfd: int, number: int, *, group: bool) -> bool:
        """Whether the system can do it. Raises ProcessLookupError when nobody is left."""
        try:
            signal.pidfd_send_signal(pidfd, number, None, PIDFD_SIGNAL_PROCESS_GROUP if group else 0)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
            return False
        return True

    def _close(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def spawn(
    argv: Sequence[str], log: Path, mark: Mark, env: Mapping[str, str] | None = None, fds: Collection[int] = ()
) -> Process:
    """Starts a program in a process group of its own, its output appended to `log`; it is given `fds`. Raises OSError.

    Nothing is awaited: a caller writes the new process down before anything else can happen.
    """
    with log.open("ab") as output:
        popen = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**_environment(), **(env or {}), **mark.env},
            start_new_session=True,
            pass_fds=tuple(fds),
        )
    return Process(popen.pid, identity(popen.pid) or "", mark, popen)


def find(pid: int, name: str, mark: Mark) -> Process | None:
    """The process called `name` (see `identity`), if it still runs under this pid."""
    found = Process(pid, name, mark)
    # Looked at after its pidfd was opened: if it is the one now, it was the one then, and stays it.
    if identity(pid) == name:
        return found
    found._close()
    return None


def left_of(pid: int, name: str, mark: Mark) -> Process:
    """What may be left of a group whose leader was that process, to be ended."""
    return find(pid, name, mark) or Process(pid, name, mark, has_ended=True)


def identity(pid: int) -> str | None:
    """What tells this process from a later one with the same pid; None when it is gone.

    On Linux the boot's id and the start in clock ticks since boot, which no change of the clock moves.
    """
    try:
        boot = BOOT.read_text().strip()
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


def marked(state: Path) -> list[Found]:
    """The processes that bear the mark of this state folder.

    A daemon killed between starting a process and writing its pid down has left one that only this finds.
    """
    owner = str(state.resolve())
    found = []
    for each in psutil.process_iter():
        try:
            env = each.environ()
        except psutil.Error:
            continue
        name = identity(each.pid) if env.get(OWNER) == owner and each.pid != os.getpid() else None
        if name is not None:
            found.append(Found(each.pid, name, env.get(CHILD, "")))
    return found


async def end_marked(state: Path, grace_s: float, keep: Collection[str] = ()) -> None:
    """Ends every process that bears the mark of this state folder, but those of the children in `keep`."""
    async with anyio.create_task_group() as tasks:
        for each in marked(state):
            if each.child in keep:
                continue
            found = find(each.pid, each.identity, Mark(state, each.child))
            if found is not None:
                log.info("ending what was left running pid=%d", each.pid)
                tasks.start_soon(found.end, grace_s)


def listens(pid: int, port: int) -> bool | None:
    """Whether this process or one of its children listens on that TCP port; None where that cannot be told."""
    try:
        leader = psutil.Process(pid)
        return any(
            connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            for each in (leader, *leader.children(recursive=True))
            for connection in each.net_connections("tcp")
        )
    except psutil.Error:
        return None


def last_words(log: Path, lines: int = 20) -> str:
    """What a program's log says of its end: the first of its last lines that names a trouble, else the last one."""
    if not log.exists():
        return "it left no log"
    said = _shortened(without_places(_end_of(log)), lines)
    return next((line for line in said if TROUBLE.search(line)), said[-1]) if said else "it said nothing"


def last_lines(log: Path, lines: int, most_bytes: int = 16384) -> tuple[str, ...]:
    """The last lines of a program's log that say anything."""
    return _shortened(_end_of(log, most_bytes), lines)


def without_places(lines: Iterable[str]) -> list[str]:
    """Without the files and the source that Python's tracebacks quote: `raise ParseError(` is not what went wrong.

    A place stands further left than its source, also where a logger puts something in front of each line.
    """
    kept, column = list[str](), None
    for line in lines:
        place = TRACEBACK_PLACE.search(line)
        if place is not None:
            column = place.start()
        elif column is None or not line[column : column + 2].isspace():
            column = None
            kept.append(line)
    return kept


def _end_of(log: Path, most_bytes: int = 16384) -> list[str]:
    """Lines; the first may lack its beginning."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - most_bytes))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def _shortened(lines: Iterable[str], most: int) -> tuple[str, ...]:
    """The last that say anything."""
    said = [line.strip() for line in lines if line.strip()][-most:]
    return tuple(line if len(line) <= MOST_WORDS else line[: MOST_WORDS - 1] + "…" for line in said)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON}


def _pidfd(pid: int) -> int | None:
    """None where the system has none, or no such process."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _leads(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid) == pid
    return False


def _boot() -> str:
    """What the identity of every process since the machine was started begins with."""
    return BOOT.read_text().strip() if BOOT.exists() else ""
