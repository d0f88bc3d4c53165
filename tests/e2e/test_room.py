"""What does not fit is refused with numbers, and what serves goes on serving (K9)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmgwd.domain.gpus import Gpu
from tests.support.house import FILE, House, add_chat, commit, house_on, wait_until
from tests.support.small_machine import GIB, MIB, Size, put_on
from tests.support.toy_engine import Behaviour

GPU = Gpu(0, "GPU-0", "A100", 80 * GIB, 80 * GIB)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with house_on(tmp_path, started=False) as made:
        put_on(made, Size())
        made.start()
        yield made


def taken(house: House) -> int:
    """What each of its replicas takes; as good as the same for all."""
    return max(int(replica["memory_bytes"]) for replica in house.model()["replicas"])


def room_for(house: House, replicas: float) -> None:
    """The machine has room for so many replicas in all."""
    put_on(house, Size(int(taken(house) * replicas)))


def ready(house: House, count: int) -> None:
    wait_until(lambda: house.model()["ready"] == count, what=f"{count} replicas are ready")


def refused(house: House, *words: str) -> str:
    """What the command says when it is refused by the present state."""
    done = house.ctl(*words)
    assert done.returncode == 3, done.stdout + done.stderr
    return done.stderr


def steps(house: House) -> dict[str, str]:
    job: dict[str, Any] = house.json("jobs", "list")[0]
    return {step["name"]: step["state"] for step in job["steps"]}


def test_a_canary_that_does_not_fit_is_refused_before_anything_is_fetched(house: House) -> None:
    add_chat(house)
    before = house.engine_pids()
    commit(house, Behaviour(words="newer"))
    room_for(house, 1.5)
    said = " ".join(refused(house, "model", "canary", "chat").split())
    tried = " ".join(refused(house, "model", "canary", "chat", "--dry-run").split())
    assert "chat-canary does not fit: it needs" in said
    assert "chat-canary does not fit: it needs" in tried
    assert "as its last start took" in said
    assert "are free (chat takes" in said
    assert "--no-fit-check" in said
    assert steps(house) == {
        "repository": "done",
        "weights": "failed",
        **dict.fromkeys(("checksums", "catalog", "placement", "smoke test", "split"), "skipped"),
    }
    assert house.canary() is None
    assert [model["name"] for model in house.json("model", "list")] == ["chat"]
    assert house.engine_pids() == before
    assert house.ask()[0] == "stable"
    house.ok("model", "canary", "chat", "--no-fit-check")
    assert (house.canary() or {})["phase"] == "serving"


def test_a_dry_run_without_the_check_says_what_would_run_where_it_does_not_fit(house: House) -> None:
    add_chat(house)
    commit(house, Behaviour(words="newer"))
    room_for(house, 1.5)
    assert house.json("model", "canary", "chat", "--dry-run", "--no-fit-check")["newer"] is True


def test_two_canaries_that_fit_one_at_a_time(house: House) -> None:
    add_chat(house)
    commit(house, Behaviour(), "acme/other-GGUF")
    house.ok("model", "add", "other", "--repo", "acme/other-GGUF", "--engine", "toy")
    for repo in ("acme/chat-GGUF", "acme/other-GGUF"):
        commit(house, Behaviour(words="newer"), repo)
    room_for(house, 3.5)
    house.ok("model", "canary", "chat")
    assert "chat-canary takes" in refused(house, "model", "canary", "other")
    house.ok("model", "abort", "chat")
    house.ok("model", "canary", "other")
    assert house.ask()[0] == "stable"


def test_with_one_gpu_a_canary_is_refused_while_stable_has_it(house: House) -> None:
    put_on(house, Size(gpus=(GPU,)))
    add_chat(house, None, "--gpus", "1")
    (stable,) = house.model()["replicas"]
    assert stable["gpus"] == ["GPU-0"]
    assert psutil.Process(stable["pid"]).environ()["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    commit(house, Behaviour(words="newer"))
    said = " ".join(refused(house, "model", "canary", "chat").split())
    assert "chat-canary does not fit: it needs 1 GPU" in said
    assert "GPU 0 (A100): chat has it" in said
    assert house.model()["replicas"] == [stable]
    assert house.ask()[0] == "stable"
    house.ok("model", "canary", "chat", "--gpus", "0")
    (candidate,) = (each for each in house.engine_pids() if each != stable["pid"])
    assert psutil.Process(candidate).environ()["CUDA_VISIBLE_DEVICES"] == ""
    house.ok("model", "promote", "chat")
    assert house.model()["gpus"] == 0
    house.ok("model", "rollback", "chat")
    assert house.model()["replicas"][0]["gpus"] == ["GPU-0"]


def test_gpus_are_known_to_be_given_after_a_crash_of_the_daemon(house: House) -> None:
    put_on(house, Size(gpus=(GPU,)))
    add_chat(house, None, "--gpus", "1")
    (stable,) = house.model()["replicas"]
    assert house.process is not None
    house.process.kill()
    house.process.wait()
    house.start()
    (found,) = house.model()["replicas"]
    assert (found["pid"], found["gpus"], found["memory_bytes"]) == (
        stable["pid"],
        stable["gpus"],
        stable["memory_bytes"],
    )
    commit(house, Behaviour(words="newer"))
    assert "chat has it" in " ".join(refused(house, "model", "canary", "chat").split())


def test_an_update_that_fits_only_in_turn_replaces_one_at_a_time(house: House) -> None:
    add_chat(house, None, "--replicas", "2")
    sha = commit(house, Behaviour(words="newer"))
    room_for(house, 2.5)
    house.ok("model", "update", "chat")
    model = house.model()
    assert [replica["revision"] for replica in model["replicas"]] == [sha, sha]
    assert house.json("jobs", "list")[0]["steps"][-1]["detail"] == "started 2, stopped 2 old"


def test_an_update_never_stops_the_last_replica_to_make_room(house: House) -> None:
    old = add_chat(house)
    commit(house, Behaviour(words="newer"))
    room_for(house, 1.5)
    assert "chat does not fit: it needs" in " ".join(refused(house, "model", "update", "chat").split())
    assert house.model()["replicas"][0]["revision"] == old
    assert house.ask()[0] == "stable"


def test_an_update_that_fails_in_turn_brings_the_old_replicas_back(house: House) -> None:
    old = add_chat(house, None, "--replicas", "2")
    commit(house, Behaviour(loads=False))
    room_for(house, 2.5)
    assert house.ctl("model", "update", "chat").returncode == 1
    ready(house, 2)
    assert [replica["revision"] for replica in house.model()["replicas"]] == [old, old]


def test_a_rollback_that_does_not_fit_is_refused_before_anything_moves(house: House) -> None:
    add_chat(house)
    new = commit(house, Behaviour(words="newer"))
    house.ok("model", "update", "chat")
    room_for(house, 1.5)
    assert "chat does not fit" in " ".join(refused(house, "model", "rollback", "chat").split())
    assert house.model()["origin"]["revision"] == new
    house.ok("model", "rollback", "chat", "--no-fit-check")


def test_a_new_model_that_does_not_fit_is_not_added(house: House) -> None:
    put_on(house, Size(100 * MIB))
    commit(house, Behaviour())
    said = refused(house, "model", "add", "chat", "--repo", "acme/chat-GGUF", "--engine", "toy")
    assert "needs 128.0 MiB of memory, by estimate" in " ".join(said.split())
    assert house.json("model", "list") == []
    assert not list((house.state / "weights").rglob(FILE))


def test_a_declared_model_that_does_not_fit_is_tried_again_until_it_does(tmp_path: Path) -> None:
    path = tmp_path / "base.gguf"
    path.write_bytes(Behaviour().weights())
    with house_on(tmp_path, {"models": [{"name": "base", "path": str(path), "engine": "toy"}]}, started=False) as house:
        put_on(house, Size(1 * MIB))
        house.start()
        wait_until(lambda: "does not fit" in house.model("base")["replicas"][0]["detail"])
        put_on(house, Size())
        wait_until(lambda: house.model("base")["ready"] == 1)


def test_what_served_before_is_started_again_on_a_full_machine(house: House) -> None:
    add_chat(house)
    house.stop()
    put_on(house, Size(1 * MIB))
    house.start()
    ready(house, 1)
    assert "started although memory is short" in house.log.read_text()
