"""A disk that takes no more: what failed says so, nothing half-written is believed, and serving goes on.

The disk is made full by a limit on the size of the daemon's files, which is taken away again.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from llmgwd.protocol.states import JobKind
from tests.support.house import FILE, REPO, House, add_chat, commit, house_on, wait_until
from tests.support.load import load_on
from tests.support.pausing_daemon import Pauses
from tests.support.toy_engine import Behaviour

OLD, NEW = Behaviour(words="the old words"), Behaviour(words="the new words")
MIB = 1 << 20
NOTHING = 4096
"""Bytes: less than the database has."""

pytestmark = pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit")


@contextmanager
def files_no_larger_than(house: House, size_bytes: int) -> Iterator[None]:
    assert house.process is not None
    pid, unlimited = house.process.pid, resource.RLIM_INFINITY
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, unlimited))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))


def test_a_fetch_that_fills_the_disk_fails_its_job_there_and_is_not_taken_for_whole(house: House) -> None:
    add_chat(house, OLD)
    sha = house.hub.commit(REPO, {FILE: NEW.weights() + b" " * 4 * MIB})
    with load_on(house), files_no_larger_than(house, MIB):
        failed = house.ctl("model", "canary", "chat")
    assert failed.returncode == 1
    assert "failed at step weights" in failed.stderr
    assert f"cannot write weights to {house.state / 'weights'}: File too large" in failed.stderr
    assert not list((house.state / "weights").glob(f"*/{sha}"))
    assert house.canary() is None
    house.ok("model", "canary", "chat", "--percent", "100")
    assert house.ask()[1]["choices"][0]["message"]["content"] == "the new words"


def test_a_verb_that_cannot_be_written_is_refused_and_has_changed_nothing(house: House) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    house.ok("model", "canary", "chat", "--percent", "50", "--deadline", "1h")
    with load_on(house) as load:
        with files_no_larger_than(house, NOTHING):
            for verb in (("percent", "chat", "100"), ("promote", "chat"), ("pause", "chat")):
                refused = house.ctl("model", *verb)
                assert refused.returncode == 1, verb
                assert "the daemon's database takes nothing now" in refused.stderr
                assert "make room" in refused.stderr
            assert house.json("model", "canaries", "chat")[0]["share"] == 50
            arms = dict(load.arms)
            wait_until(lambda: all(load.arms[arm] > arms[arm] + 5 for arm in ("stable", "canary")))
        house.ok("model", "percent", "chat", "30")
        house.ok("model", "promote", "chat")
    assert house.ask()[1]["choices"][0]["message"]["content"] == "the new words"


def test_an_abort_that_cannot_be_written_gives_the_canary_nothing_even_so(house: House) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    house.ok("model", "canary", "chat", "--percent", "100")
    with load_on(house):
        with files_no_larger_than(house, NOTHING):
            failed = house.ctl("model", "abort", "chat")
            assert failed.returncode == 1
            assert "takes nothing now" in failed.stderr
            assert "chat is safe, stable serves every request" in failed.stderr
            assert {house.ask()[0] for _ in range(10)} == {"stable"}
        house.ok("model", "percent", "chat", "100")
        assert house.ask()[0] == "canary"
        house.ok("model", "abort", "chat")
    assert len(house.engine_pids()) == 1


def test_a_job_whose_end_cannot_be_written_says_so_at_once_and_is_undone_when_there_is_room(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with house_on(tmp_path_factory.mktemp("full"), started=False) as house:
        pauses = Pauses(house)
        house.start()
        add_chat(house, OLD)
        commit(house, NEW)
        pauses.at(JobKind.CANARY, "placement")
        job = house.ok("model", "canary", "chat", "--detach").split()[-1]
        pauses.wait_reached()
        with load_on(house):
            with files_no_larger_than(house, NOTHING):
                pauses.let_go()
                watched = house.ctl("jobs", "watch", job)
                assert watched.returncode == 1
                assert "the daemon's database takes nothing now" in watched.stderr
                assert house.ctl("model", "update", "chat").returncode == 3
            wait_until(lambda: house.json("jobs", "show", job)["ended"])
            wait_until(lambda: house.canary() is None)
        assert house.json("jobs", "show", job)["state"] == "failed"
        assert len(house.engine_pids()) == 1
        house.ok("model", "canary", "chat")


def test_a_reload_that_cannot_be_written_changes_nothing_and_ends_nothing(house: House) -> None:
    add_chat(house, OLD)
    path = house.root / "base.gguf"
    path.write_bytes(NEW.weights())
    before = house.engine_pids()
    house.settings["models"] = [{"name": "base", "path": str(path), "engine": "toy"}]
    with files_no_larger_than(house, NOTHING):
        house.reload()
        wait_until(lambda: "not reloaded, nothing changed: the daemon's database" in house.log.read_text())
        assert [model["name"] for model in house.json("model", "list")] == ["chat"]
        assert house.engine_pids() == before
        assert house.ask()[1]["choices"][0]["message"]["content"] == "the old words"
    house.reload()
    wait_until(lambda: "configuration reloaded" in house.log.read_text())
    wait_until(lambda: house.json("model", "show", "base")["ready"])
    assert house.ask("base")[1]["choices"][0]["message"]["content"] == "the new words"
