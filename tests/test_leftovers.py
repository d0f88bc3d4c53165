"""What is left of a state folder's processes is ended, by record and by mark."""

import os
import signal
import sys
from pathlib import Path

import anyio.to_thread
import pytest

from llmgwd import process
from llmgwd.domain.processes import ProcessKind, ProcessRecord
from llmgwd.leftovers import end_left
from llmgwd.store.store import Store
from tests.support.house import wait_until

pytestmark = pytest.mark.anyio
SLEEPS = "import time; time.sleep(600)"
LEAVES_A_CHILD_WITHOUT_A_MARK = (
    "import subprocess, sys, time\n"
    f"print(subprocess.Popen([sys.executable, '-c', {SLEEPS!r}], env={{}}).pid, flush=True)\n"
    "time.sleep(600)\n"
)


async def test_what_is_written_down_or_marked_is_ended_and_forgotten_but_what_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "llmgw.db")

    def start(child: str, code: str = SLEEPS) -> process.Process:
        return process.spawn([sys.executable, "-c", code], tmp_path / child, process.Mark(tmp_path, child))

    def write_down(child: str, started: process.Process) -> None:
        store.processes.put(ProcessRecord(child, ProcessKind.REPLICA, started.pid, started.identity, b"{}"))

    kept, runs, marked, gone = (
        start("kept"),
        start("runs"),
        start("marked"),
        start("gone", LEAVES_A_CHILD_WITHOUT_A_MARK),
    )
    for child, started in (("kept", kept), ("runs", runs), ("gone", gone)):
        write_down(child, started)
    log = tmp_path / "gone"
    orphan = int(await anyio.to_thread.run_sync(lambda: wait_until(lambda: log.read_text().strip())))
    child_name = process.identity(orphan)
    os.kill(gone.pid, signal.SIGKILL)
    await gone.wait()
    await end_left(tmp_path, store.processes, 5, keep={"kept"})
    assert [each.is_running for each in (kept, runs, marked)] == [True, False, False]
    assert process.identity(orphan) != child_name
    assert [each.id for each in store.processes.all(ProcessKind.REPLICA)] == ["kept"]
    await kept.end(5)
    store.close()
