"""Weights from this machine, what the catalog knows of them, and what is told of a change."""

import hashlib
import json
import os
import shlex
from pathlib import Path

from tests.support.house import REPO, House, add_chat, commit, wait_until
from tests.support.local_hub import Fault
from tests.support.toy_engine import FOLDER_FILE, Behaviour

OLD, NEW, NEWEST = Behaviour(words="old"), Behaviour(words="new"), Behaviour(words="newest")


def page_of_chat(house: House) -> str:
    """What `show` says, wherever it broke the lines: that depends on how long the paths of this run are."""
    return " ".join(house.ok("model", "show", "chat").split())


def said(house: House) -> str:
    return str(house.ask()[1]["choices"][0]["message"]["content"])


def step(house: House, name: str) -> str:
    """What the newest job's step says."""
    (newest, *_) = house.json("jobs", "list")
    return str({step["name"]: step["detail"] for step in newest["steps"]}[name])


def local(house: House, name: str, behaviour: Behaviour) -> Path:
    path = house.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(behaviour.weights())
    return path


def test_local_weights_of_a_model_and_its_canary_are_known_by_their_content(house: House) -> None:
    path = local(house, "chat.gguf", OLD)
    old, new = (hashlib.sha256(each.weights()).hexdigest() for each in (OLD, NEW))
    house.ok("model", "add", "chat", "--path", str(path), "--engine", "toy")
    assert house.model()["origin"]["content"] == old
    assert f"sha256 {old}" in page_of_chat(house)

    again = house.ok("model", "canary", "chat", "--path", str(path))
    assert again == f"nothing newer: chat already serves {path} ({old[:7]})\n"
    assert house.canary() is None

    path.write_bytes(NEW.weights())  # the same path, and other weights
    house.ok("model", "canary", "chat", "--path", str(path))
    canary = house.canary()
    assert canary is not None
    assert (canary["origin"]["content"], canary["stable_origin"]["content"]) == (new, old)
    assert step(house, "checksums").startswith(f"sha256 {new}: weights (1 of 1 files")
    house.ok("model", "promote", "chat")
    assert said(house) == "new"
    (promoted,) = [event for event in house.json("events") if event["what"] == "canary_promoted"]
    assert f"{path} ({new[:7]})" in promoted["after"]


def test_local_weights_that_were_rolled_back_are_remembered_wherever_they_lie(house: House) -> None:
    old, new = local(house, "old.gguf", OLD), local(house, "new.gguf", NEW)
    house.ok("model", "add", "chat", "--path", str(old), "--engine", "toy")
    house.ok("model", "update", "chat", "--path", str(new))
    house.ok("model", "rollback", "chat")
    assert said(house) == "old"
    copy = local(house, "else where/copy.gguf", NEW)
    refused = house.ctl("model", "canary", "chat", "--path", str(copy), "--percent", "25")
    assert refused.returncode == 3
    assert "was rolled back before" in refused.stderr
    command = refused.stderr.split("`")[1]
    assert command == f"llmgw ctl model canary chat --path '{copy}' --percent 25 --again"
    house.ok(*shlex.split(command)[2:])


def test_weights_that_were_rolled_back_are_remembered_under_another_commit(house: House) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    house.ok("model", "canary", "chat")
    house.ok("model", "promote", "chat")
    house.ok("model", "rollback", "chat")
    house.hub.commit(REPO, {"README.md": b"words"})
    refused = house.ctl("model", "canary", "chat")
    assert refused.returncode == 3
    assert "was rolled back before" in refused.stderr
    assert "--again" in refused.stderr
    (update,) = house.json("model", "updates", "chat")
    assert "it was rolled back before" in update["summary"]


def test_a_folder_is_served_as_a_whole(house: House) -> None:
    for name, behaviour in (("old", OLD), ("new", NEW)):
        local(house, f"{name}/{FOLDER_FILE}", behaviour)
        (house.root / name / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    house.ok("model", "add", "chat", "--path", str(house.root / "old"), "--engine", "toy")
    assert house.model()["origin"]["files"] == ["config.json", FOLDER_FILE]
    (house.root / "new" / "config.json").write_text(json.dumps({"max_position_embeddings": 8192}))
    house.ok("model", "canary", "chat", "--path", str(house.root / "new"))
    house.ok("model", "promote", "chat")
    assert said(house) == "new"
    assert house.model()["changes"].endswith("config, context length 4096 → 8192")


def commit_folder(house: House, behaviour: Behaviour, **small: object) -> str:
    written = {f"{name}.json": json.dumps(value) for name, value in small.items()}
    return house.hub.commit(REPO, {FOLDER_FILE: behaviour.weights(), **written})


def test_what_changed_is_told_in_the_step_and_on_the_models_page(house: House) -> None:
    config, tokens = {"max_position_embeddings": 4096}, {"chat_template": "a", "x": 1}
    commit_folder(house, OLD, config=config, tokenizer_config=tokens, generation_config={"top_p": 1})
    house.ok("model", "add", "chat", "--repo", REPO, "--engine", "toy")
    assert house.model()["origin"]["context_length"] == 4096

    config, tokens = {"max_position_embeddings": 8192}, {"chat_template": "b", "x": 1}
    commit_folder(house, NEW, config=config, tokenizer_config=tokens, generation_config={"top_p": 0.5})
    house.ok("model", "canary", "chat")
    size = len(NEW.weights())
    changes = (
        f"weights (1 of 1 files, {size} bytes new), tokenizer, generation config, config, chat template,"
        " context length 4096 → 8192"
    )
    assert step(house, "repository").partition(": ")[2] == changes
    canary = house.canary()
    assert canary is not None
    assert canary["changes"] == changes
    house.ok("model", "promote", "chat")
    assert house.model()["changes"] == changes
    assert changes in page_of_chat(house)


def test_a_commit_that_touches_no_selected_file_starts_nothing(house: House) -> None:
    add_chat(house)
    sha = house.hub.commit(REPO, {"README.md": b"words", "chat-Q8_0.gguf": b"another quantisation"})
    house.hub.requests.clear()
    for verb in ("canary", "update"):
        said = house.ok("model", verb, "chat")
        assert said == f"nothing newer: {REPO} at {sha[:7]} changes none of the files that chat serves\n"
    assert house.canary() is None
    assert house.hub.requests.matching("/cdn/*") == []


def test_offline_what_is_on_disk_is_served_and_tried(house: House) -> None:
    first = add_chat(house, OLD)
    second = commit(house, NEW)
    house.ok("model", "canary", "chat")
    house.ok("model", "promote", "chat")
    house.stop()
    house.hub.close()
    house.own_env["HF_HUB_OFFLINE"] = "1"
    house.start()
    wait_until(lambda: house.model()["ready"] == 1)
    assert said(house) == "new"
    assert "nothing newer" in house.ok("model", "canary", "chat")
    house.ok("model", "canary", "chat", "--revision", first[:7], "--percent", "100")
    assert said(house) == "old"
    house.ok("model", "abort", "chat")
    missing = house.ctl("model", "canary", "chat", "--revision", "main")
    assert f"on disk: {second[:7]}, {first[:7]}" in missing.stderr
    (update,) = house.json("model", "updates", "chat")
    assert update["summary"].startswith("HF_HUB_OFFLINE is set")


def test_weights_on_disk_are_listed_and_pruned(house: House) -> None:
    revisions = [add_chat(house, OLD)]
    for behaviour in (NEW, NEWEST):
        revisions.append(commit(house, behaviour))
        house.ok("model", "update", "chat")
    weights = house.state / "weights"
    wait_until(lambda: len(house.json("weights", "list")) == 2, what="the first revision is removed")
    partial = weights / ".partial" / f"sha256-{'0' * 64}"
    partial.write_bytes(os.urandom(1 << 20))

    newest, before, leftover = house.json("weights", "list")
    assert (newest["revision"], newest["used_by"], newest["kept"]) == (revisions[2], ["chat"], True)
    assert (before["revision"], before["used_by"], before["kept"]) == (revisions[1], ["chat before"], True)
    assert (leftover["repo"], leftover["size_bytes"], leftover["kept"]) == (None, 1 << 20, False)

    expected = [{"repo": None, "revision": None, "freed_bytes": 1 << 20}]
    assert house.json("weights", "prune", "--dry-run") == expected
    assert partial.exists()
    assert house.json("weights", "prune") == expected
    assert not partial.exists()
    assert house.ok("weights", "prune") == "nothing to remove\n"
    house.ok("model", "rollback", "chat")
    assert said(house) == "new"


def test_prune_waits_for_a_job_that_fetches(house: House) -> None:
    commit(house, OLD)
    house.hub.faults.add(Fault("/cdn/*", hang=True))
    job = house.ok("model", "add", "chat", "--repo", REPO, "--engine", "toy", "--detach").strip()
    house.hub.requests.wait_for("/cdn/*")
    refused = house.ctl("weights", "prune")
    assert refused.returncode == 3
    assert f"{job} may need weights" in refused.stderr
    assert house.json("weights", "prune", "--dry-run") == []
    house.ok("jobs", "cancel", job)
    house.ok("weights", "prune")


def test_a_file_that_got_another_name_in_a_folder_is_something_newer(house: House) -> None:
    house.hub.commit(REPO, {FOLDER_FILE: OLD.weights(), "config.json": b"{}", "tokenizer_old.json": b'{"x": 1}'})
    house.ok("model", "add", "chat", "--repo", REPO, "--engine", "toy")
    house.hub.commit(REPO, {"tokenizer_old.json": None, "tokenizer.json": b'{"x": 1}'})
    (update,) = house.json("model", "updates", "chat")
    assert (update["newer"], update["summary"]) == (True, "tokenizer (renamed)")
    house.ok("model", "canary", "chat")
    assert (house.canary() or {})["changes"].startswith("tokenizer (renamed)")


def test_code_that_the_settings_name_is_refused_before_anything_is_fetched(house: House) -> None:
    mapped = json.dumps({"auto_map": {"AutoModel": "modeling_own.OwnModel"}}).encode()
    others = {"modeling_own.py": b"", "inference.py": b""}
    house.hub.commit(REPO, {FOLDER_FILE: OLD.weights(), "config.json": b"{}", **others})
    house.ok("model", "add", "chat", "--repo", REPO, "--engine", "toy")
    assert house.model()["origin"]["files"] == ["config.json", FOLDER_FILE]
    house.hub.commit(REPO, {"config.json": mapped})
    house.hub.requests.clear()
    refused = house.ctl("model", "canary", "chat")
    assert refused.returncode == 1
    assert "brings code that is run to load it: modeling_own.py" in refused.stderr
    assert house.hub.requests.matching("/cdn/*") == []
    house.ok("model", "canary", "chat", "--allow-unsafe")


def test_the_canary_of_a_model_on_local_weights_follows_their_quantisation(house: House) -> None:
    path = local(house, "own-Q5_K_M.gguf", OLD)
    house.ok("model", "add", "chat", "--path", str(path), "--engine", "toy")
    house.hub.commit(REPO, {f"chat-{quant}.gguf": NEW.weights() for quant in ("Q4_K_M", "Q5_K_M")})
    house.ok("model", "canary", "chat", "--repo", REPO)
    canary = house.canary()
    assert canary is not None
    assert canary["origin"]["files"] == ["chat-Q5_K_M.gguf"]


def test_a_folder_without_weights_is_refused_with_what_was_looked_for(house: House) -> None:
    folder = house.root / "empty"
    folder.mkdir()
    (folder / "README.md").write_text("words")
    refused = house.ctl("model", "add", "chat", "--path", str(folder), "--engine", "toy")
    assert refused.returncode == 1
    assert f"{folder} has no weights: looked for .gguf, .safetensors" in refused.stderr
