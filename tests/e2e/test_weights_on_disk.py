"""What stays on disk: what is served, what one can go back to, nothing else."""

from pathlib import Path

from tests.support.house import House, add_chat, commit, wait_until
from tests.support.toy_engine import Behaviour


def on_disk(house: House) -> set[str]:
    return {path.name for path in Path(house.state / "weights").glob("*--*/*") if path.is_dir()}


def test_revisions_that_nothing_needs_are_removed_and_rollback_still_works(house: House) -> None:
    revisions = [add_chat(house, Behaviour(words="1"))]
    for words in ("2", "3"):
        revisions.append(commit(house, Behaviour(words=words)))
        house.ok("model", "canary", "chat")
        house.ok("model", "promote", "chat")
    wait_until(lambda: on_disk(house) == set(revisions[1:]))
    house.hub.close()
    house.ok("model", "rollback", "chat")
    assert house.ask()[1]["choices"][0]["message"]["content"] == "2"


def test_update_moves_without_a_canary_and_back(house: House) -> None:
    add_chat(house, Behaviour(words="1"))
    commit(house, Behaviour(words="2"))
    house.ok("model", "update", "chat")
    assert house.ask()[1]["choices"][0]["message"]["content"] == "2"
    assert "nothing newer" in house.ok("model", "update", "chat")
    commit(house, Behaviour(loads=False))
    done = house.ctl("model", "update", "chat")
    assert done.returncode == 1
    assert house.ask()[1]["choices"][0]["message"]["content"] == "2"
    assert house.model()["ready"] == 1
    assert len(house.engine_pids()) == 1
    house.ok("model", "rollback", "chat")
    assert house.ask()[1]["choices"][0]["message"]["content"] == "1"
