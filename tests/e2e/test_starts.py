"""What comes in the middle of a start: refusals, signals, replicas that answer; what runs is never lost by it (K13)."""

import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from llmgwd import process
from llmgwd.domain.processes import ProcessKind
from llmgwd.store.store import Store
from tests.support.house import FILE, House, add_chat, commit, wait_until
from tests.support.toy_engine import Behaviour

OLD, NEW = Behaviour(words="the old words"), Behaviour(words="the new words")
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


@contextmanager
def start_held_up(house: House) -> Iterator[None]:
    """A start that goes on for as long as it takes to end one that ignores TERM, and was not written down."""
    env = {**os.environ, **process.Mark(house.state, "chat-canary-stray").env}
    stray = subprocess.Popen(
        [sys.executable, "-c", DEAF], env=env, start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    assert stray.stdout is not None
    assert stray.stdout.readline() == "deaf\n"
    house.launch()
    wait_until(lambda: f"ending what was left running pid={stray.pid}" in house.log.read_text())
    try:
        yield
    finally:
        assert stray.wait(30) == -signal.SIGKILL
        stray.stdout.close()


def children(house: House) -> set[str]:
    return {each.child for each in process.marked(house.state)}


def test_a_canary_that_answers_while_the_start_goes_on_harms_nothing(house: House) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    house.ok("model", "canary", "chat", "--percent", "50")
    left = house.engine_pids()
    house.stop(signal.SIGKILL)
    with start_held_up(house):
        pass
    wait_until(lambda: (found := house.canary()) and found["phase"] == "serving" and house.ask()[0] == "canary")
    assert house.engine_pids() == left


def test_a_start_refused_for_the_gateways_address_ends_nothing(house: House) -> None:
    add_chat(house, OLD)
    left = house.engine_pids()
    workers = [each.pid for each in process.marked(house.state) if each.child.startswith("w0")]
    house.stop(signal.SIGKILL)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(process.identity(pid) for pid in workers))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", house.gateway_port))
        other.listen()
        house.launch()
        assert house.process is not None
        assert house.process.wait(30) == 1
        house.process = None
    assert "cannot be listened on" in house.log.read_text()
    assert house.engine_pids() == left
    assert not house.socket.exists()
    house.start()
    assert house.engine_pids() == left


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit")
def test_a_start_that_finds_the_disk_full_ends_nothing(house: House) -> None:
    add_chat(house, OLD, "--replicas", "2")
    goes, *_ = [each["pid"] for each in house.model()["replicas"]]
    house.stop(signal.SIGKILL)
    os.kill(goes, signal.SIGKILL)
    wait_until(lambda: process.identity(goes) is None)
    left = children(house)
    house.program = ["/bin/sh", "-c", 'ulimit -f 8; exec "$@"', "sh", *house.program]
    house.launch()
    assert house.process is not None
    assert house.process.wait(60) == 1
    house.process = None
    assert "takes nothing now" in house.log.read_text()
    assert children(house) == left
    house.program = house.program[4:]
    house.start()
    wait_until(lambda: house.model()["ready"] == 2)
    assert children(house) > left


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit")
def test_a_start_whose_disk_is_full_in_its_middle_serves_and_notes_the_rest_when_there_is_room(house: House) -> None:
    add_chat(house, OLD)
    commit(house, Behaviour(load_s=600))
    job = house.ok("model", "canary", "chat", "--detach").split()[-1]
    wait_until(lambda: len(house.engine_pids()) == 2)
    house.ok("status")
    (replica,) = (each["pid"] for each in house.model()["replicas"])
    left = [each for each in process.marked(house.state) if each.pid != replica]
    house.stop(signal.SIGKILL)
    for each in left:
        os.kill(each.pid, signal.SIGKILL)
    weights: Path = house.root / FILE
    weights.write_bytes(NEW.weights())
    house.settings["models"] = [{"name": "base", "path": str(weights), "engine": "toy"}]
    with start_held_up(house):
        assert house.process is not None
        pid, unlimited = house.process.pid, resource.RLIM_INFINITY
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, unlimited))
    wait_until(lambda: house.ctl("status").returncode == 0)
    assert house.ask()[0] == "stable"
    assert house.ctl("model", "show", "base").returncode == 4
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
    wait_until(lambda: house.json("jobs", "show", job)["ended"])
    assert replica in house.engine_pids()
    store = Store(house.state / "llmgw.db")
    (worker,) = (each.pid for each in process.marked(house.state) if each.child.startswith("w0"))
    wait_until(lambda: [each.pid for each in store.processes.all(ProcessKind.WORKER)] == [worker])
    store.close()
    house.restart()
    assert replica in house.engine_pids()
    assert house.model("base")


@pytest.mark.parametrize(
    ("options", "how", "is_left"),
    [
        pytest.param([], signal.SIGTERM, False, id="SIGTERM"),
        pytest.param(["--leave-running"], signal.SIGTERM, True, id="SIGTERM, told to leave"),
        pytest.param(["--leave-running"], signal.SIGINT, False, id="SIGINT, told to leave"),
    ],
)
def test_a_signal_in_the_middle_of_a_start_is_followed(
    house: House, options: list[str], how: signal.Signals, is_left: bool
) -> None:
    add_chat(house, OLD)
    left = children(house)
    house.stop(signal.SIGKILL)
    house.options = options
    with start_held_up(house):
        assert house.stop(how) == 0
        assert children(house) - {"chat-canary-stray"} == (left if is_left else set())
        for each in process.marked(house.state):
            if each.child == "chat-canary-stray":
                os.kill(each.pid, signal.SIGKILL)
    assert not house.socket.exists()
    house.options = []
    house.start()
    wait_until(lambda: house.model()["ready"] == 1)


def test_a_reload_asked_for_in_the_middle_of_a_start_is_done_after_it(house: House) -> None:
    house.stop(signal.SIGKILL)
    weights: Path = house.root / FILE
    weights.write_bytes(NEW.weights())
    with start_held_up(house):
        declared = {"name": "base", "path": str(weights), "engine": "toy"}
        house.reload({**house.settings, "models": [declared]})
    wait_until(lambda: house.ctl("model", "show", "base").returncode == 0 and house.model("base")["ready"] == 1)
    assert house.ask("base")[1]["choices"][0]["message"]["content"] == "the new words"


def test_a_reload_asked_for_before_a_stop_in_the_middle_of_a_start_is_not_begun(house: House) -> None:
    house.stop(signal.SIGKILL)
    weights: Path = house.root / FILE
    weights.write_bytes(NEW.weights())
    with start_held_up(house):
        declared = {"name": "base", "path": str(weights), "engine": "toy"}
        house.reload({**house.settings, "models": [declared]})
        assert house.stop() == 0
    assert children(house) == set()
    store = Store(house.state / "llmgw.db")
    assert store.models.all() == []
    store.close()


def test_no_configuration_that_can_be_written_ends_a_daemon_by_a_reload(house: House) -> None:
    add_chat(house, OLD)
    assert house.process is not None
    good = house.config.read_text()
    bad = [
        "hub: 2020-99-99",
        "gateway: {workers: " + "9" * 5000 + "}",
        "a: " + "[" * 2000,
        good + "models: [{name: base, engine: toy, path: /" + "x" * 300 + "}]",
        good.replace("gateway:", 'gateway:\n  api_keys_file: "/a\\0b"'),
    ]

    def has_refused(times: int) -> bool:
        return house.log.read_text().count("not reloaded, nothing changed") == times

    for number, text in enumerate(bad, 1):
        house.config.write_text(text)
        house.process.send_signal(signal.SIGHUP)
        wait_until(partial(has_refused, number))
    assert "Traceback" not in house.log.read_text()
    assert house.ask()[0] == "stable"
    house.reload()
    wait_until(lambda: "configuration reloaded" in house.log.read_text())


def test_a_reload_asked_for_before_the_daemon_is_imported_is_done_after_the_start(house: House) -> None:
    house.stop()
    (slow := house.root / "slow").mkdir()
    # Stands for the imports that take a while: nothing of the daemon is there yet.
    (slow / "anyio.py").write_text(
        "import pathlib, signal, sys\n"
        f"pathlib.Path({str(house.root / 'imports')!r}).touch()\n"
        "signal.sigwait([signal.SIGUSR1])\n"
        f"sys.path.remove({str(slow)!r}); del sys.modules['anyio']\n"
        "import anyio\n"
    )
    begin = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}); "
    begin += f"import sys; sys.path.insert(0, {str(slow)!r}); from llmgwd.main import run; sys.exit(run())"
    house.program = [sys.executable, "-c", begin]
    house.launch()
    assert house.process is not None
    wait_until((house.root / "imports").exists)
    house.process.send_signal(signal.SIGHUP)
    house.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: "configuration reloaded" in house.log.read_text())
    assert house.stop() == 0


def test_a_second_signal_while_what_is_left_is_ended_does_not_end_the_daemon_before(house: House) -> None:
    house.stop(signal.SIGKILL)
    with start_held_up(house):
        assert house.process is not None
        house.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "ending what was left" in house.log.read_text().partition("stopping: draining")[2])
        assert house.stop() == 0
    assert children(house) == set()


@pytest.mark.parametrize("spoilt", ["", "logs", "gateway.sock", "llmgwd.lock"])
def test_a_state_folder_that_cannot_be_used_is_told_in_words(house: House, spoilt: str) -> None:
    house.stop()
    path = house.state / spoilt
    aside = house.root / "aside"
    if path.exists():
        path.rename(aside)
    path.write_text("") if spoilt in ("", "logs") else path.mkdir()
    house.launch()
    assert house.process is not None
    assert house.process.wait(30) == 1
    house.process = None
    assert f"llmgwd: {path} cannot be used: " in house.log.read_text()
    assert "LLMGW_STATE_DIR" in house.log.read_text()


def test_a_start_afresh_ends_the_worker_that_the_lost_database_knew(house: House) -> None:
    add_chat(house, OLD)
    left = {each.pid for each in process.marked(house.state)}
    house.stop(signal.SIGKILL)
    for each in house.state.glob("llmgw.db*"):
        each.rename(house.root / each.name)
    house.start()
    assert not left & {each.pid for each in process.marked(house.state)}
    assert house.json("model", "list") == []


@contextmanager
def database_locked(house: House) -> Iterator[None]:
    with closing(sqlite3.connect(house.state / "llmgw.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.mark.parametrize("options", [[], ["--leave-running"]], ids=["stop", "leave"])
def test_a_database_that_takes_nothing_does_not_make_an_end_fail(house: House, options: list[str]) -> None:
    house.options = options
    house.restart()
    add_chat(house, OLD)
    with database_locked(house):
        assert house.stop() == 0
    assert "what was counted of canaries and not written yet is lost why=database is locked" in house.log.read_text()
    assert bool(children(house)) is bool(options)
    house.options = []
    house.start()


def test_declared_models_that_did_not_change_are_served_by_a_start_while_the_database_is_locked(house: House) -> None:
    weights: Path = house.root / FILE
    weights.write_bytes(NEW.weights())
    house.settings["models"] = [{"name": "base", "path": str(weights), "engine": "toy"}]
    house.restart()
    house.stop(signal.SIGKILL)
    with database_locked(house):
        house.start()
        wait_until(lambda: house.model("base")["ready"] == 1)
        assert house.ask("base")[1]["choices"][0]["message"]["content"] == "the new words"
