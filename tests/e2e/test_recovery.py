"""Jobs and verbs over the end of the daemon: they go on, or are undone, and nothing is in between."""

import shutil
import signal
import socket
from typing import Any

import pytest

from llmgwd.domain.jobs import STEPS
from llmgwd.domain.recovery import MOST_ENDS
from llmgwd.protocol.states import JobKind
from tests.support.house import FILE, REPO, House, add_chat, commit, wait_until
from tests.support.local_hub import Fault
from tests.support.toy_engine import Behaviour

OLD, NEW = Behaviour(words="the old words"), Behaviour(words="the new words")
SLOW = Behaviour(words="the new words", load_s=600)
MIB = 1 << 20
REQUEST = b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n{"model":"chat"}'


def killed(house: House) -> None:
    """The daemon is gone as if the machine had lost it, and started again."""
    house.stop(signal.SIGKILL)
    house.start()


def job(house: House, job_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = house.json("jobs", "show", job_id)
    return shown


def step(house: House, job_id: str, name: str) -> str:
    """The state of a step of a job."""
    return str(next(each["state"] for each in job(house, job_id)["steps"] if each["name"] == name))


def detached(house: House, *words: str) -> str:
    return house.ok(*words, "--detach").split()[-1]


def ended(house: House, job_id: str) -> dict[str, Any]:
    return dict(wait_until(lambda: (found := job(house, job_id)) and found["ended"] and found))


def said(house: House) -> str:
    return str(house.ask(headers={"x-llmgw-arm": "stable"})[1]["choices"][0]["message"]["content"])


def test_a_canary_killed_while_it_fetches_goes_on_where_the_download_was(house: House) -> None:
    add_chat(house, OLD)
    weights = NEW.weights() + b" " * 4 * MIB
    house.hub.commit(REPO, {FILE: weights})
    house.hub.faults.add(Fault("/cdn/*", hang_after=3 * MIB, times=None))
    job_id = detached(house, "model", "canary", "chat", "--percent", "40")
    partials = house.state / "weights" / ".partial"
    wait_until(lambda: partials.is_dir() and sum(each.stat().st_size for each in partials.iterdir()) >= 2 * MIB)
    house.stop(signal.SIGKILL)
    had = sum(each.stat().st_size for each in partials.iterdir())
    house.hub.faults.clear()
    house.hub.requests.clear()
    house.start()
    assert ended(house, job_id)["state"] == "done"
    (resumed,) = house.hub.requests.matching("/cdn/*", "GET")
    assert resumed.range == f"bytes={had}-"
    canary = house.canary()
    assert canary is not None
    assert (canary["phase"], canary["share"]) == ("serving", 40)
    assert [event["what"] for event in house.json("events")].count("job_resumed") == 1


def test_a_canary_killed_while_it_starts_goes_on_and_can_still_be_aborted(house: House) -> None:
    add_chat(house, OLD)
    commit(house, SLOW)
    job_id = detached(house, "model", "canary", "chat")
    wait_until(lambda: step(house, job_id, "placement") == "running" and len(house.engine_pids()) == 2)
    killed(house)
    wait_until(lambda: house.model()["ready"] == 1 and len(house.engine_pids()) == 2)
    assert job(house, job_id)["state"] == "running"
    assert house.ask()[0] == "stable"
    assert "is out" in house.ok("model", "abort", "chat")
    assert job(house, job_id)["state"] == "cancelled"
    assert len(house.engine_pids()) == 1
    assert house.json("model", "canaries", "--ended")[0]["phase"] == "aborted"


def test_a_step_that_ends_the_daemon_again_and_again_is_given_up_and_undone(house: House) -> None:
    add_chat(house, OLD)
    commit(house, SLOW)
    job_id = detached(house, "model", "canary", "chat")
    for _ in range(MOST_ENDS):
        wait_until(lambda: step(house, job_id, "placement") == "running")
        killed(house)
        wait_until(lambda: len(house.engine_pids()) == 2 or job(house, job_id)["ended"])
    given_up = ended(house, job_id)
    assert given_up["state"] == "failed"
    assert f"the daemon ended {MOST_ENDS} times at this step" in given_up["outcome"]
    assert house.canary() is None
    wait_until(lambda: house.model()["ready"] == 1 and len(house.engine_pids()) == 1)


@pytest.mark.parametrize("kind", ["update", "rollback"])
def test_a_move_killed_half_way_goes_on_while_the_old_weights_serve_and_can_still_be_undone(
    house: House, kind: str
) -> None:
    old = add_chat(house, OLD)
    slow = commit(house, SLOW)
    if kind == "rollback":
        new = commit(house, NEW)
        house.ok("model", "update", "chat")
        (weights,) = (house.state / "weights").glob(f"*/{old}/{FILE}")
        weights.chmod(0o600)
        weights.write_bytes(SLOW.weights())
        old, slow = new, old
    before = said(house)
    job_id = detached(house, "model", kind, "chat")
    wait_until(lambda: step(house, job_id, "replicas") == "running" and len(house.engine_pids()) == 2)
    killed(house)
    wait_until(lambda: house.model()["ready"] == 1 and len(house.engine_pids()) == 2)
    assert house.model()["origin"]["revision"] == slow
    assert job(house, job_id)["state"] == "running"
    assert said(house) == before
    house.ok("jobs", "cancel", job_id)
    assert house.model()["origin"]["revision"] == old
    assert len(house.engine_pids()) == 1
    assert said(house) == before
    assert [event["what"] for event in house.json("events")].count("move_undone") == 1


def test_an_add_killed_half_way_goes_on(house: House) -> None:
    commit(house, Behaviour(words="the new words", load_s=1.0))
    job_id = detached(house, "model", "add", "chat", "--repo", REPO, "--engine", "toy", "--replicas", "2")
    wait_until(lambda: step(house, job_id, "replicas") == "running")
    killed(house)
    assert ended(house, job_id)["state"] == "done"
    assert house.model()["ready"] == 2
    assert len(house.engine_pids()) == 2


def test_a_promotion_that_has_committed_goes_on_after_kill_9_and_cannot_be_aborted(house: House) -> None:
    add_chat(house, OLD, "--replicas", "2")
    commit(house, NEW)
    house.ok("model", "canary", "chat", "--percent", "50")
    # The second new replica takes until it is let: by then the promotion has committed.
    slow_down(house)
    job_id = detached(house, "model", "promote", "chat")
    wait_until(lambda: step(house, job_id, "replicas") == "running")
    killed(house)
    refused = house.ctl("model", "abort", "chat")
    assert refused.returncode == 3
    assert "already promoted" in refused.stderr
    assert "rollback chat" in refused.stderr
    assert ended(house, job_id)["state"] == "done"
    shown = house.model()
    assert (shown["ready"], len(shown["replicas"])) == (2, 2)
    assert said(house) == "the new words"
    assert len(house.engine_pids()) == 2


def slow_down(house: House) -> None:
    """What is started from now on of the newest weights takes a while to be ready."""
    canary = house.canary()
    assert canary is not None
    (weights,) = (house.state / "weights").glob(f"*/{canary['origin']['revision']}/{FILE}")
    weights.chmod(0o600)
    weights.write_bytes(Behaviour(words="the new words", load_s=3.0).weights())


def test_an_abort_that_was_cut_short_is_brought_to_its_end(house: House) -> None:
    add_chat(house, OLD)
    # It answers one request and keeps it for long: the drain waits for it.
    commit(house, Behaviour(words="the new words", hangs_after=2))
    house.ok("model", "canary", "chat", "--percent", "100")
    with socket.create_connection(("127.0.0.1", house.gateway_port)) as client:
        client.sendall(REQUEST)
        wait_until(lambda: house.in_flight("chat", "canary") == 1)
        aborting = house.begin("model", "abort", "chat")
        wait_until(lambda: (found := house.canary()) and found["phase"] == "removing")
        house.stop(signal.SIGKILL)
    assert aborting.wait(30) != 0
    house.start()
    wait_until(lambda: house.canary() is None)
    assert house.json("model", "canaries", "--ended")[0]["phase"] == "aborted"
    wait_until(lambda: len(house.engine_pids()) == 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_that_is_stopped_leaves_its_jobs_for_the_next_start(house: House, number: signal.Signals) -> None:
    add_chat(house, OLD)
    house.hub.commit(REPO, {FILE: NEW.weights() + b" " * MIB})
    house.hub.faults.add(Fault("/cdn/*", hang=True))
    job_id = detached(house, "model", "canary", "chat", "--percent", "40")
    wait_until(lambda: house.hub.requests.matching("/cdn/*"))
    assert house.stop(number) == 0
    house.hub.faults.clear()
    house.start()
    assert ended(house, job_id)["state"] == "done"
    wait_until(lambda: house.ask()[0] == "canary")


def test_every_step_of_a_job_that_went_on_is_told_of(house: House) -> None:
    add_chat(house, OLD)
    commit(house, Behaviour(words="the new words", load_s=1.0))
    job_id = detached(house, "model", "canary", "chat")
    wait_until(lambda: step(house, job_id, "placement") == "running")
    killed(house)
    assert {each["name"]: each["state"] for each in ended(house, job_id)["steps"]} == dict.fromkeys(
        STEPS[JobKind.CANARY], "done"
    )


def test_a_damaged_database_is_refused_and_the_backup_that_is_named_brings_everything_back(house: House) -> None:
    add_chat(house, OLD)
    house.stop()
    backups, database = house.state / "backups", house.state / "llmgw.db"
    for copy in backups.iterdir():
        copy.unlink()
    house.start()
    (copy,) = wait_until(lambda: list(backups.glob("llmgw-*.db")))
    house.stop()
    database.write_bytes(b"\xff" * 8192)
    with pytest.raises(AssertionError, match="cannot be read as llmgw's database") as refused:
        house.start()
    house.process = None
    assert f"cp {copy} {database}" in str(refused.value)
    assert database.read_bytes() == b"\xff" * 8192
    for left in ("llmgw.db", "llmgw.db-wal", "llmgw.db-shm"):
        (house.state / left).unlink(missing_ok=True)
    shutil.copy(copy, database)
    house.start()
    wait_until(lambda: house.model()["ready"] == 1)
    assert said(house) == "the old words"
