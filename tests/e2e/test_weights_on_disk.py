"""What stays on disk: what is served, what one can go back to, nothing else."""

from pathlib import Path

from tests.support.house import FILE, REPO, House, add_chat, commit, wait_until
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


def test_damage_at_rest_is_found_named_and_fetched_again(house: House) -> None:
    sha = add_chat(house, Behaviour(words="1"))
    folder = house.state / "weights" / REPO.replace("/", "--") / sha
    size = len(good(folder))
    whole = house.ctl("weights", "verify", "chat")
    assert (whole.returncode, whole.stdout) == (
        0,
        f"{REPO} {sha[:7]}: 1 file, {size} bytes, hashed again\n1 revision, 1 file, all as they should be\n",
    )
    assert f"{REPO} {sha[:7]}: 0 bytes of" in whole.stderr

    before = good(folder)
    (folder / FILE).chmod(0o644)
    (folder / FILE).write_bytes(before.replace(b"1", b"2", 1))
    damaged = house.ctl("weights", "verify", sha[:7])
    assert damaged.returncode == 1
    assert f"{FILE} has the wrong content: expected sha256" in damaged.stdout
    assert "1 of 1 revisions damaged, of chat" in damaged.stderr
    assert "weights verify --repair" in damaged.stderr

    assert house.ctl("weights", "verify", "nobody").returncode == 4
    assert "fetched again what was damaged" in house.ok("weights", "verify", "--repair")
    assert good(folder) == before
    (view,) = house.json("weights", "verify")
    assert (view["revision"], view["damage"], view["used_by"]) == (sha, "", ["chat"])


def good(folder: Path) -> bytes:
    return (folder / FILE).read_bytes()
