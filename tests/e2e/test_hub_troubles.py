"""What goes wrong between the hub and the disk never reaches what is served, and costs no more than it must."""

import os
import random
import signal
from contextlib import AbstractContextManager
from pathlib import Path

from tests.support.house import FILE, REPO, House, add_chat, commit, house_on, wait_until
from tests.support.local_hub import Fault
from tests.support.small_disk import small_disk
from tests.support.toy_engine import FOLDER_FILE, Behaviour

MIB = 1 << 20
OLD, NEW = Behaviour(words="old"), Behaviour(words="new")
SECRET = "hf_aVerySecretToken"


def said(house: House) -> str:
    return str(house.ask()[1]["choices"][0]["message"]["content"])


def sent_bytes(house: House) -> int:
    return sum(request.body_bytes for request in house.hub.requests.matching("/cdn/*", "GET"))


def padded(behaviour: Behaviour, size_bytes: int) -> bytes:
    """Weights of this size: the engine reads JSON, and spaces behind it do no harm."""
    return behaviour.weights().ljust(size_bytes)


def shards(behaviour: Behaviour, count: int) -> dict[str, bytes]:
    names = [f"chat-Q4_K_M-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    return {name: random.randbytes(MIB) if number else behaviour.weights() for number, name in enumerate(names)}


def house_with_weights_on(root: Path, disk: Path) -> AbstractContextManager[House]:
    return house_on(root, {"weights": {"dir": str(disk / "weights"), "min_free": "1MiB"}})


def test_a_daemon_killed_at_90_percent_fetches_the_rest_only(house: House) -> None:
    size = 200 * MIB
    house.hub.commit(REPO, {FILE: padded(OLD, size)})
    house.hub.faults.add(Fault("/cdn/*", hang_after=size * 9 // 10))
    house.ok("model", "add", "chat", "--repo", REPO, "--engine", "toy", "--detach")
    partials = house.state / "weights" / ".partial"
    wait_until(
        lambda: partials.is_dir() and any(path.stat().st_size >= size * 9 // 10 for path in partials.iterdir()), 120
    )
    house.stop(signal.SIGKILL)
    house.hub.faults.clear()
    house.hub.requests.clear()

    house.start()
    wait_until(lambda: not house.json("status")["jobs"], 120)
    if not house.json("model", "list"):  # the job was undone rather than gone on with
        house.ok("model", "add", "chat", "--repo", REPO, "--engine", "toy", timeout_s=120)
    assert said(house) == "old"
    assert sent_bytes(house) - size // 10 < size // 20


def test_a_flipped_byte_never_runs(house: House) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    engines = house.engine_pids()
    house.hub.faults.add(Fault("/cdn/*", flip_byte_at=3, times=None))
    for verb in ("canary", "update"):
        done = house.ctl("model", verb, "chat")
        assert done.returncode == 1
        assert f"{FILE} has the wrong content: expected sha256" in done.stderr
        assert house.engine_pids() == engines
    assert house.canary() is None
    assert said(house) == "old"
    house.hub.faults.clear()
    house.ok("model", "update", "chat")
    assert said(house) == "new"


def test_a_full_disk_leaves_nothing_behind_and_the_old_weights_serving(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8 * MIB) as disk, house_with_weights_on(tmp_path, disk) as house:
        weights = disk / "weights"
        add_chat(house, OLD)
        before = sorted(path.relative_to(weights) for path in weights.rglob("*"))
        house.hub.commit(REPO, {FILE: padded(NEW, 20 * MIB)})
        refused = house.ctl("model", "update", "chat")
        assert refused.returncode == 3
        assert "the weights need 20.0 MiB more and 1.0 MiB must stay free (weights.min_free), but" in refused.stderr
        assert "`llmgw ctl weights prune` would give 0 bytes, not enough" in refused.stderr

        house.hub.commit(REPO, {FILE: padded(NEW, 6 * MIB)})
        house.hub.requests.clear()
        house.hub.faults.add(Fault("/cdn/*", bytes_per_s=6 * MIB, times=None))
        job = house.ok("model", "update", "chat", "--detach").strip()
        wait_until(lambda: any(path.stat().st_size for path in (weights / ".partial").iterdir()))
        (disk / "somebody-elses").write_bytes(os.urandom(4 * MIB))  # it fills while the fetch runs
        failed = house.ctl("jobs", "watch", job)
        assert failed.returncode == 1
        assert f"{weights} is full" in failed.stderr
        assert sorted(path.relative_to(weights) for path in weights.rglob("*")) == before
        assert len(house.hub.requests.matching("/cdn/*")) == 2  # for what changed, and the fetch: no hot retries
        assert said(house) == "old"


def test_a_fetch_is_not_given_the_room_that_another_still_needs(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8 * MIB) as disk, house_with_weights_on(tmp_path, disk) as house:
        house.hub.commit(REPO, {FILE: padded(OLD, 5 * MIB)})
        house.hub.commit("org/other", {FILE: padded(NEW, 4 * MIB)})
        house.hub.faults.add(Fault("/cdn/*", hang_after=MIB))
        first = house.ok("model", "add", "chat", "--repo", REPO, "--engine", "toy", "--detach").strip()
        other = ("model", "add", "other", "--repo", "org/other", "--engine", "toy")
        house.hub.requests.wait_for("/cdn/*")
        refused = house.ctl(*other)
        assert refused.returncode == 3
        assert f"the weights need 4.0 MiB more, {first} still needs " in refused.stderr
        assert f"wait for {first}" in refused.stderr

        house.ok("jobs", "cancel", first)
        wait_until(lambda: not house.json("status")["jobs"])
        house.ok("weights", "prune")
        house.ok(*other)
        assert house.ask("other")[1]["choices"][0]["message"]["content"] == "new"


def test_429_twice_is_waited_out_and_seen_in_the_step(house: House) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    # The first answer is the step's that looks what changed; it does without.
    house.hub.faults.add(Fault.rate_limited(f"/{REPO}/*", seconds=1, times=3))
    told = house.ctl("model", "update", "chat")

    assert told.returncode == 0
    for attempt in (2, 3):
        assert f"(429, no token was sent); it asks to wait 1 s; trying again in 1 s (attempt {attempt}" in told.stderr
    assert said(house) == "new"


def test_a_set_that_lacks_a_shard_is_refused_before_any_download(house: House) -> None:
    three = shards(OLD, 3)
    (_, missing, _) = three
    house.hub.commit(REPO, {name: data for name, data in three.items() if name != missing})
    done = house.ctl("model", "add", "chat", "--repo", REPO, "--engine", "toy")
    assert done.returncode == 1
    assert f"Q4_K_M lacks {missing}" in done.stderr
    assert house.hub.requests.matching(f"/{REPO}/*") == house.hub.requests.matching("/cdn/*") == []


def test_an_update_that_changes_one_shard_in_four_downloads_that_one(house: House) -> None:
    four = shards(OLD, 4)
    house.hub.commit(REPO, four)
    house.ok("model", "add", "chat", "--repo", REPO, "--engine", "toy")
    changed = sorted(four)[2]
    house.hub.commit(REPO, {changed: random.randbytes(MIB)})
    house.hub.requests.clear()
    house.ok("model", "update", "chat")
    (only,) = house.hub.requests.matching("/cdn/*")
    assert only.path.endswith(changed)
    assert house.model()["changes"] == "weights (1 of 4 files, 1.0 MiB new)"


def test_several_quantisations_are_refused_with_their_sizes(house: House) -> None:
    house.hub.commit(REPO, {"chat-Q5_K_M.gguf": bytes(3 * MIB), "chat-Q6_K.gguf": bytes(4 * MIB)})
    done = house.ctl("model", "add", "chat", "--repo", REPO, "--engine", "toy")
    assert done.returncode == 1
    assert "chat-Q5_K_M: Q5_K_M (3.0 MiB), chat-Q6_K: Q6_K (4.0 MiB)" in done.stderr
    assert "--quant" in done.stderr


MAPPED = b'{"auto_map": {"AutoModel": "modeling_chat.ChatModel"}}'


def test_weights_that_run_code_are_taken_only_when_allowed(house: House) -> None:
    house.hub.commit(REPO, {FOLDER_FILE: OLD.weights(), "config.json": MAPPED, "modeling_chat.py": b"print('hello')"})
    argv = ("model", "add", "chat", "--repo", REPO, "--engine", "toy")
    done = house.ctl(*argv)
    assert done.returncode == 1
    assert "the repository brings code that is run to load it: modeling_chat.py" in done.stderr
    assert "add --allow-unsafe" in done.stderr
    house.ok(*argv, "--allow-unsafe")
    assert "modeling_chat.py" in house.model()["origin"]["files"]


def test_the_token_is_in_no_log_message_database_or_process(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(SECRET)
    with house_on(tmp_path, started=False) as house:
        house.settings["hub"]["token_file"] = str(token)
        house.start()
        house.hub.require_token(REPO, SECRET)
        add_chat(house, OLD)
        house.hub.require_token(REPO, "hf_rotated")
        refused = house.ctl("model", "update", "chat")
        assert f"does not accept the token (the token from {token} was sent)" in refused.stderr
        seen = [house.log.read_bytes(), refused.stderr.encode(), house.ok("jobs", "list", "--json").encode()]
        seen += [path.read_bytes() for path in house.state.rglob("*") if path.is_file()]
        for pid in [house.process.pid if house.process else 0, *house.engine_pids()]:
            seen += [Path(f"/proc/{pid}/{what}").read_bytes() for what in ("cmdline", "environ")]
        assert not any(SECRET.encode() in each for each in seen)
        assert {request.host for request in house.hub.requests.matching() if request.had_token} == {"127.0.0.1"}
