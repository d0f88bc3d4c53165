"""Processes over the daemon's lives: gone on with, replaced, ended; and clients notice none of it (K13, G10)."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmgwd import process
from llmgwd.domain.processes import ProcessKind
from llmgwd.store.store import Store
from tests.support.house import House, add_chat, commit, free_port, house_on, wait_until
from tests.support.load import Load, load_on
from tests.support.toy_engine import Behaviour

OLD, NEW = Behaviour(words="the old words", token_s=0.002), Behaviour(words="the new words", token_s=0.002)


def worker_pids(house: House) -> set[int]:
    """Gateway workers of this house's state folder."""
    found = set()
    for each in process.marked(house.state):
        if b"llmgwd.gateway.worker" in Path(f"/proc/{each.pid}/cmdline").read_bytes():
            found.add(each.pid)
    return found


def is_settled(house: House) -> bool:
    """Whether every replica of chat and its canary answers."""
    model, canary = house.model(), house.canary()
    serves = canary is None or not canary["next"].startswith("stable serves everything")
    return bool(model["ready"] == model["wanted"] and serves)


def wait_until_answered(load: Load, more: int) -> None:
    seen = load.answered
    wait_until(lambda: load.answered > seen + more)


def restart(house: House, how: signal.Signals) -> None:
    house.stop(how)
    start(house)


def start(house: House) -> None:
    house.start()
    wait_until(lambda: is_settled(house))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["kill -9", "--leave-running"])
def test_a_restart_costs_no_request_and_no_process(tmp_path: Path, how: signal.Signals) -> None:
    with house_on(tmp_path, started=False) as house:
        house.settings["gateway"]["workers"] = 2
        house.options = ["--leave-running"] if how is signal.SIGTERM else []
        house.start()
        add_chat(house, OLD, "--replicas", "2")
        commit(house, NEW)
        house.ok("model", "canary", "chat", "--percent", "30")
        engines, workers = house.engine_pids(), worker_pids(house)
        with load_on(house) as load:
            for _ in range(2):
                wait_until(lambda: load.arms["canary"] > 5)
                house.stop(how)
                wait_until_answered(load, 10)
                house.start()
                wait_until(lambda: is_settled(house))
                load.arms.clear()
            wait_until(lambda: load.arms["canary"] > 5)
        assert house.engine_pids() == engines
        assert worker_pids(house) == workers
        assert house.json("status")["workers"] == 2
        assert house.stop(signal.SIGINT) == 0
        assert house.engine_pids() == worker_pids(house) == set()


def test_a_canary_gets_nothing_after_a_restart_until_it_has_answered(house: House) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    house.ok("model", "canary", "chat", "--percent", "100")
    (pid,) = house.engine_pids() - {house.model()["replicas"][0]["pid"]}
    house.stop(signal.SIGKILL)
    os.kill(pid, signal.SIGSTOP)
    house.start()
    assert house.model()["ready"] == 1
    assert {house.ask()[0] for _ in range(6)} == {"stable"}
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: house.ask()[0] == "canary")
    assert {house.ask()[0] for _ in range(6)} == {"canary"}


def test_a_promoted_replica_is_gone_on_with_as_the_models(house: House) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    house.ok("model", "canary", "chat", "--percent", "50")
    house.ok("model", "promote", "chat")
    left = house.engine_pids()
    restart(house, signal.SIGKILL)
    assert house.engine_pids() == left
    assert house.ask()[1]["choices"][0]["message"]["content"] == "the new words"
    house.ok("model", "rollback", "chat")
    assert not house.engine_pids() & left


def test_samples_are_handed_in_after_a_restart_and_counted_once(house: House) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    house.ok("model", "canary", "chat", "--percent", "50")

    def counted() -> list[int]:
        canary = house.canary()
        assert canary is not None
        return [canary[arm]["requests"] for arm in ("stable", "canary")]

    for _ in range(10):
        house.ask()
    wait_until(lambda: counted() == [5, 5])
    # The look that saves them comes five times a second.
    wait_until(lambda: sum(_saved(house).values()) >= 1)
    house.stop(signal.SIGKILL)
    for _ in range(10):
        house.ask()
    house.start()
    wait_until(lambda: counted() == [10, 10])


def _saved(house: House) -> dict[str, int]:
    store = Store(house.state / "llmgw.db")
    try:
        canary = store.canaries.running()[0]
        return {each.arm: sum(each.outcomes.values()) for each in store.canaries.samples(canary.id)}
    finally:
        store.close()


def test_a_pid_that_is_somebody_elses_now_is_left_alone(house: House) -> None:
    add_chat(house, OLD)
    (gone,) = house.engine_pids()
    house.stop(signal.SIGKILL)
    os.kill(gone, signal.SIGKILL)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        store = Store(house.state / "llmgw.db")
        (record,) = store.processes.all(ProcessKind.REPLICA)
        store._connection.execute("UPDATE processes SET pid = ? WHERE id = ?", (stranger.pid, record.id))
        store.close()
        house.start()
        wait_until(lambda: house.model()["ready"] == 1)
        assert house.ask()[0] == "stable"
        assert house.engine_pids().isdisjoint({gone, stranger.pid})
        assert len(house.engine_pids()) == 1
        assert house.stop() == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_replica_that_died_with_the_daemon_is_started_once(house: House) -> None:
    add_chat(house, OLD, "--replicas", "2")
    gone, stays = sorted(house.engine_pids())
    house.stop(signal.SIGKILL)
    os.kill(gone, signal.SIGKILL)
    start(house)
    assert stays in house.engine_pids()
    assert len(house.engine_pids()) == 2


def test_a_start_that_is_refused_ends_nothing(house: House) -> None:
    add_chat(house, OLD)
    engines, workers = house.engine_pids(), worker_pids(house)
    house.stop(signal.SIGKILL)
    taken = house.settings["admin"]["listen"]
    house.settings["admin"]["listen"] = house.settings["gateway"]["listen"]
    with pytest.raises(AssertionError, match="cannot be listened on"):
        house.start()
    house.process = None
    assert house.ask()[0] == "stable"
    house.settings["admin"]["listen"] = taken
    start(house)
    assert house.engine_pids() == engines
    assert worker_pids(house) == workers


def change(house: House, **gateway: Any) -> None:
    house.settings["gateway"] = {**house.settings["gateway"], **gateway}


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"workers": 3}, id="more workers"),
        pytest.param({"workers": 1}, id="fewer workers"),
        pytest.param({"queue": 7}, id="another limit"),
    ],
)
def test_workers_that_are_to_be_otherwise_are_replaced_without_a_loss(tmp_path: Path, changed: dict[str, int]) -> None:
    with house_on(tmp_path, started=False) as house:
        change(house, workers=2)
        house.options = ["--leave-running"]
        house.start()
        add_chat(house, OLD)
        before = worker_pids(house)
        with load_on(house) as load:
            wait_until(lambda: load.answered > 20)
            house.stop()
            change(house, **changed)
            house.start()
            wait_until(lambda: not worker_pids(house) & before)
            wait_until_answered(load, 20)
        assert len(worker_pids(house)) == changed.get("workers", 2)
        assert house.stop(signal.SIGINT) == 0


def test_another_address_is_listened_on_after_a_restart_and_the_old_one_no_more(tmp_path: Path) -> None:
    with house_on(tmp_path, started=False) as house:
        house.options = ["--leave-running"]
        house.start()
        add_chat(house, OLD)
        before, engines = worker_pids(house), house.engine_pids()
        house.stop()
        house.gateway_port = free_port()
        change(house, listen=f"127.0.0.1:{house.gateway_port}")
        house.start()
        wait_until(lambda: not worker_pids(house) & before)
        assert house.ask()[0] == "stable"
        assert house.engine_pids() == engines
        assert house.stop(signal.SIGINT) == 0


def test_a_worker_that_dies_loses_nobody_who_waits_to_be_accepted(house: House) -> None:
    add_chat(house, OLD)
    (worker,) = worker_pids(house)
    os.kill(worker, signal.SIGSTOP)
    asking = subprocess.Popen(
        [sys.executable, "-c", f"import urllib.request as u; print(u.urlopen('{house.gateway}/health').status)"],
        stdout=subprocess.PIPE,
    )
    wait_until(lambda: _waits(house.gateway_port))
    os.kill(worker, signal.SIGKILL)
    said, _ = asking.communicate(timeout=30)
    assert said == b"200\n"


def _waits(port: int) -> bool:
    """Whether a connection stands in the queue of the listening socket."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" and int(row[4].split(":")[1], 16) for row in rows)
