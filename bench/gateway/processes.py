"""Processes under measurement: started, asked what they used, ended; always with all their descendants."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

END_TIMEOUT_S = 5.0
READY_TIMEOUT_S = 120.0
_TAIL_BYTES = 2000


class StartError(Exception):
    """A process ended, or did not serve in time; the message has the end of its log."""


class ProcessGroup:
    """Processes that count as one: their CPU time and memory are summed, descendants included."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Adds a process; its output goes to the group's log."""
        with self._log.open("ab") as log:
            settings = {**os.environ, **(environment or {})}
            process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=settings)
        self._processes.append(process)

    def cpu_s(self) -> float:
        """User and system seconds used so far, by the operating system's accounting."""
        return sum(_cpu_s(process) for process in self._tree())

    def rss_bytes(self) -> int:
        """Resident memory now; pages that processes share count in each."""
        total = 0
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def await_port(self, port: int, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Returns once something accepts connections there. Raises StartError."""
        end = time.monotonic() + timeout_s
        while True:
            self.check_running()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            if time.monotonic() > end:
                raise StartError(f"nothing listens on port {port} after {timeout_s:g} s; log:\n{self.log_tail()}")
            time.sleep(0.05)

    def check_running(self) -> None:
        """Raises StartError when one of the processes has ended."""
        for process in self._processes:
            if process.poll() is not None:
                raise StartError(f"{process.args!r} ended with {process.returncode}; log:\n{self.log_tail()}")

    def end(self) -> None:
        """Ends every process of the tree, first politely."""
        tree = self._tree()
        for started in self._processes:
            started.terminate()
        _, alive = psutil.wait_procs(tree, timeout=END_TIMEOUT_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for started in self._processes:
            started.wait()
        self._processes.clear()

    def log_tail(self) -> str:
        return self._log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")

    def _tree(self) -> list[psutil.Process]:
        tree: list[psutil.Process] = []
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(process.pid)
                tree += [root, *root.children(recursive=True)]
        return tree


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _cpu_s(process: psutil.Process) -> float:
    """One process, all its threads, and those of its children that have ended."""
    try:
        times = process.cpu_times()
        if sys.platform != "linux":
            return float(times.user + times.system)
        # A process's own clock counts nanoseconds where /proc counts hundredths; its id is the kernel's
        # CPUCLOCK_SCHED of that pid, as clock_getcpuclockid(3) would give it.
        own_s = time.clock_gettime((~process.pid << 3) | 2)
        return own_s + float(times.children_user + times.children_system)
    except (psutil.NoSuchProcess, ProcessLookupError, OSError):
        return 0.0
