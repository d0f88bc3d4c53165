"""Processes are told apart, ended as groups, and quoted by what they said last."""

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from llmgwd import process
from tests.support.house import wait_until

CHILD_OF_CHILD = (
    "import signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(600)\n"
)


@pytest.mark.anyio
async def test_a_group_that_ignores_term_is_killed_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    started = await process.spawn([sys.executable, "-c", CHILD_OF_CHILD], log)
    child = int(await anyio.to_thread.run_sync(lambda: wait_until(lambda: log.read_text().strip())))
    name, child_name = process.identity(started.pid), process.identity(child)
    assert name is not None
    assert child_name is not None
    await process.end(started.pid, name, 0.1)
    await started.wait()
    assert process.identity(started.pid) != name
    assert process.identity(child) != child_name


@pytest.mark.anyio
async def test_children_that_outlived_their_leader_are_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    started = await process.spawn([sys.executable, "-c", CHILD_OF_CHILD], log)
    child = int(await anyio.to_thread.run_sync(lambda: wait_until(lambda: log.read_text().strip())))
    name, child_name = process.identity(started.pid), process.identity(child)
    started.kill()
    await started.wait()
    assert process.identity(child) == child_name
    await process.end(started.pid, name, 0.1)
    await anyio.to_thread.run_sync(lambda: wait_until(lambda: process.identity(child) != child_name))


@pytest.mark.anyio
async def test_a_pid_that_is_another_process_now_is_left_alone(tmp_path: Path) -> None:
    other = await process.spawn([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "log")
    try:
        await process.end(other.pid, "an earlier process", 0.1)
        await process.end(other.pid, None, 0.1)
        assert other.returncode is None
        assert process.identity(other.pid) is not None
    finally:
        other.kill()
        await other.wait()


def test_identity_is_stable_and_none_for_what_is_gone() -> None:
    assert process.identity(os.getpid()) == process.identity(os.getpid()) is not None
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert process.identity(gone.pid) is None


@pytest.mark.parametrize(
    ("log", "words"),
    [
        pytest.param(b"starting\nerror: no such tensor\ncleaning up\n", "error: no such tensor", id="first trouble"),
        pytest.param(b"loading\n\nbye\n", "bye", id="last line"),
        pytest.param(b"\n \n", "it said nothing", id="empty"),
        pytest.param(b"x" * 1000, "x" * 299 + "…", id="long"),
        pytest.param(b"error: \xff\n", "error: \ufffd", id="not text"),
    ],
)
def test_last_words(tmp_path: Path, log: bytes, words: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(log)
    assert process.last_words(path) == words
    assert process.last_words(tmp_path / "none") == "it left no log"
