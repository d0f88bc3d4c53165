"""Processes are told apart, ended as groups, and quoted by what they said last."""

import errno
import os
import signal
import socket
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


SLEEPS = "import time; time.sleep(600)"
PIDFDS = pytest.mark.parametrize("pidfds", [True, False], ids=["with pidfds", "without"])


def run(code: str, folder: Path, child: str = "child") -> process.Process:
    return process.spawn([sys.executable, "-c", code], folder / "log", process.Mark(folder, child))


async def printed(folder: Path) -> int:
    """The number that the process wrote."""
    log = folder / "log"
    return int(await anyio.to_thread.run_sync(lambda: wait_until(lambda: log.exists() and log.read_text().strip())))


@pytest.fixture
def without_pidfds(monkeypatch: pytest.MonkeyPatch, pidfds: bool) -> None:
    if not pidfds:
        monkeypatch.delattr(os, "pidfd_open")


@PIDFDS
@pytest.mark.anyio
@pytest.mark.usefixtures("without_pidfds")
async def test_a_group_that_ignores_term_is_ended_whole(tmp_path: Path) -> None:
    started = run(CHILD_OF_CHILD, tmp_path)
    child = await printed(tmp_path)
    child_name = process.identity(child)
    assert child_name is not None
    assert await started.end(0.1)
    assert started.returncode == -signal.SIGKILL
    assert process.identity(child) != child_name


@PIDFDS
@pytest.mark.anyio
@pytest.mark.usefixtures("without_pidfds")
async def test_many_that_end_one_process_at_once_all_see_it_ended_and_one_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = 0
    real = process.marked

    def counted(state: Path) -> list[process.Found]:
        nonlocal scans
        scans += 1
        return real(state)

    monkeypatch.setattr(process, "marked", counted)
    started = run(SLEEPS, tmp_path)
    seen = []

    async def end() -> None:
        seen.append(await started.end(5))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(end)
    assert seen == [True] * 8
    assert scans == 1


@PIDFDS
@pytest.mark.anyio
@pytest.mark.usefixtures("without_pidfds")
async def test_children_that_outlived_their_leader_are_ended(tmp_path: Path) -> None:
    started = run(CHILD_OF_CHILD, tmp_path)
    child = await printed(tmp_path)
    child_name = process.identity(child)
    os.kill(started.pid, signal.SIGKILL)
    await started.wait()
    assert process.identity(child) == child_name
    assert await started.end(0.1)
    assert process.identity(child) != child_name


UNMARKED_CHILD = CHILD_OF_CHILD.replace("time.sleep(600)'])", "time.sleep(600)'], env={})")


@pytest.fixture
def old_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose pidfds take signals for a process and not for its group, as before Linux 6.9."""
    real = signal.pidfd_send_signal

    def send(pidfd: int, number: int, info: None = None, flags: int = 0) -> None:
        if flags:
            raise OSError(errno.EINVAL, "Invalid argument")
        real(pidfd, number, info, flags)

    monkeypatch.setattr(signal, "pidfd_send_signal", send)


@pytest.mark.parametrize("elsewhere", ["", ", process_group=0"], ids=["in its group", "in its session"])
@pytest.mark.anyio
@pytest.mark.usefixtures("old_kernel")
async def test_a_child_without_a_mark_is_ended_after_its_leader_was(tmp_path: Path, elsewhere: str) -> None:
    started = run(UNMARKED_CHILD.replace("env={}", f"env={{}}{elsewhere}"), tmp_path)
    child = await printed(tmp_path)
    child_name = process.identity(child)
    os.kill(started.pid, signal.SIGKILL)
    await started.wait()
    assert process.identity(child) == child_name
    assert await started.end(0.1)
    assert process.identity(child) != child_name


@pytest.mark.anyio
async def test_what_a_leader_left_behind_is_ended_by_its_name_alone(tmp_path: Path) -> None:
    started = run(UNMARKED_CHILD, tmp_path)
    child = await printed(tmp_path)
    child_name = process.identity(child)
    os.kill(started.pid, signal.SIGKILL)
    await started.wait()
    mark = process.Mark(tmp_path, "child")
    assert process.find(started.pid, started.identity, mark) is None
    assert process.marked(tmp_path) == []
    an_earlier_boot = "another-boot:" + started.identity.partition(":")[2]
    assert await process.left_of(started.pid, an_earlier_boot, mark).end(0.1)
    assert process.identity(child) == child_name
    assert await process.left_of(started.pid, started.identity, mark).end(0.1)
    assert process.identity(child) != child_name


@pytest.mark.anyio
async def test_what_is_left_of_one_whose_pid_is_anothers_is_nothing(tmp_path: Path) -> None:
    other = run(SLEEPS, tmp_path)
    boot, _, start = other.identity.partition(":")
    gone = process.left_of(other.pid, f"{boot}:{int(start) - 1}", process.Mark(tmp_path, "gone"))
    assert await gone.end(0.1)
    assert other.is_running
    await other.end(5)


@pytest.mark.anyio
async def test_a_child_that_left_the_group_is_ended_with_it_and_another_childs_is_not(tmp_path: Path) -> None:
    leaves = CHILD_OF_CHILD.replace(
        "'import time; time.sleep(600)'])", "'import time; time.sleep(600)'], process_group=0)"
    )
    started, other = run(leaves, tmp_path), run(SLEEPS, tmp_path, "other")
    child = await printed(tmp_path)
    assert os.getpgid(child) == child
    child_name = process.identity(child)
    assert await started.end(0.1)
    assert process.identity(child) != child_name
    assert other.is_running
    assert await other.end(5)


@PIDFDS
@pytest.mark.anyio
@pytest.mark.usefixtures("without_pidfds")
async def test_one_that_is_not_our_child_is_found_waited_for_and_ended(tmp_path: Path) -> None:
    # Started by a process that has ended since, as by an earlier life of the daemon.
    starter = (
        "import sys, pathlib; from llmgwd import process\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        f"started = process.spawn([sys.executable, '-c', {SLEEPS!r}], folder / 'log', process.Mark(folder, 'child'))\n"
        "print(started.pid, started.identity)\n"
    )
    done = await anyio.run_process([sys.executable, "-c", starter, tmp_path])
    pid, name = done.stdout.decode().split()
    found = process.find(int(pid), name, process.Mark(tmp_path, "child"))
    assert found is not None
    assert found.is_running
    with anyio.move_on_after(0.2) as waited:
        await found.wait()
    assert waited.cancelled_caught
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(found.end, 5)
        assert await found.wait() is None
    assert process.identity(found.pid) != name


@pytest.mark.anyio
async def test_a_pid_that_is_another_process_now_is_not_found(tmp_path: Path) -> None:
    other = run(SLEEPS, tmp_path)
    boot, _, start = other.identity.partition(":")
    for name in (f"{boot}:{int(start) - 1}", f"another-boot:{start}", ""):
        assert process.find(other.pid, name, process.Mark(tmp_path, "child")) is None
    assert other.is_running
    await other.end(5)


@pytest.mark.anyio
async def test_what_bears_the_mark_is_ended_but_what_is_kept(tmp_path: Path) -> None:
    stray, kept = run(SLEEPS, tmp_path, "stray"), run(SLEEPS, tmp_path, "kept")
    (tmp_path / "elsewhere").mkdir()
    elsewhere = run(SLEEPS, tmp_path / "elsewhere", "stray")
    await process.end_marked(tmp_path, 5, keep={"kept"})
    assert [each.is_running for each in (stray, kept, elsewhere)] == [False, True, True]
    await kept.end(5)
    await elsewhere.end(5)


def test_who_listens_is_told(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert process.listens(os.getpid(), port) is True
        other = subprocess.Popen([sys.executable, "-c", SLEEPS])
        assert process.listens(other.pid, port) is False
        other.kill()
        other.wait()


def test_identity_is_stable_and_none_for_what_is_gone() -> None:
    assert process.identity(os.getpid()) == process.identity(os.getpid()) is not None
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert process.identity(gone.pid) is None


TRACEBACK = b"""Traceback (most recent call last):
  File "/lib/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
           ~~~~~~~~~~~~~~~~~~~~~~~^^^
  File "/lib/json/errors.py", line 364, in fail
    raise JSONDecodeError(
        "Expecting value", s, err.value
    ) from None
json.decoder.JSONDecodeError: Expecting value
"""


@pytest.mark.parametrize(
    ("log", "words"),
    [
        pytest.param(b"starting\nerror: no such tensor\ncleaning up\n", "error: no such tensor", id="first trouble"),
        pytest.param(b"loading\n\nbye\n", "bye", id="last line"),
        pytest.param(b"\n \n", "it said nothing", id="empty"),
        pytest.param(b"x" * 1000, "x" * 299 + "…", id="long"),
        pytest.param(b"error: \xff\n", "error: \ufffd", id="not text"),
        pytest.param(TRACEBACK, "json.decoder.JSONDecodeError: Expecting value", id="traceback"),
        pytest.param(
            b"".join(b"(Core pid=7) " + line for line in TRACEBACK.splitlines(keepends=True)),
            "(Core pid=7) json.decoder.JSONDecodeError: Expecting value",
            id="traceback by a logger",
        ),
        pytest.param(
            b"\n".join(TRACEBACK.splitlines()[2:]),
            "json.decoder.JSONDecodeError: Expecting value",
            id="half of it",
        ),
    ],
)
def test_last_words(tmp_path: Path, log: bytes, words: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(log)
    assert process.last_words(path) == words
    assert process.last_words(tmp_path / "none") == "it left no log"
