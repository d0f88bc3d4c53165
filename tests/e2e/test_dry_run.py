"""What would be fetched and run is said before anything is, and what there is to run it with."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.behaving_engines import programs
from tests.support.elsewhere import elsewhere
from tests.support.house import FILE, REPO, House, add_chat, commit, house_on
from tests.support.toy_engine import ARGV, FOLDER_FILE, Behaviour

SECRET = "sk-in-the-environment"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with house_on(tmp_path, started=False) as fresh:
        fresh.settings["engines"]["keyed"] = {"argv": ARGV, "env": {"API_KEY": SECRET}, "slots": 2}
        bin_folder = programs(tmp_path / "bin")
        (bin_folder / "ollama").unlink()
        fresh.own_env = {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
        fresh.start()
        yield fresh


def unchanged(house: House) -> list[Any]:
    """What a dry run must leave as it is."""
    return [*(house.json(*asked) for asked in (("model", "list"), ("jobs", "list"), ("events",))), house.engine_pids()]


def test_an_add_says_what_it_would_fetch_and_run(house: House) -> None:
    sha = commit(house, Behaviour(), notes_txt=b"x" * 100)
    words = (
        "model",
        "add",
        "chat",
        "--repo",
        REPO,
        "--engine",
        "llama-server",
        "--engine-arg=--parallel=3",
        "--dry-run",
    )
    before = unchanged(house)
    found = house.json(*words)
    size = len(Behaviour().weights())
    assert (found["newer"], found["fetch_bytes"]) == (True, size)
    assert found["files"] == [{"path": FILE, "size_bytes": size, "fetch_bytes": size}]
    engine = found["engine"]
    assert engine["argv"][:2] == ["llama-server", "--model"]
    assert Path(engine["argv"][2]).name == FILE
    assert sha in engine["argv"][2]
    assert engine["argv"][3:] == [
        *("--alias", "chat", "--host", "127.0.0.1", "--port", "{port}", "--parallel=3"),
    ]
    assert (engine["slots"], engine["health"]) == (3, "/health")
    assert engine["program_path"] == f"{house.root}/bin/llama-server"
    assert unchanged(house) == before
    assert house.json("weights", "list") == []
    shown = " ".join(house.ok(*words).split())
    assert "chat would run on llama-server" in shown
    assert f"{FILE} {size} bytes" in shown


def test_a_canary_says_whether_there_is_anything_newer_and_what_of_it_is_on_disk(house: House) -> None:
    add_chat(house, Behaviour(words="old"))
    before = unchanged(house)
    found = house.json("model", "canary", "chat", "--dry-run")
    revision = found["origin"]["revision"][:7]
    assert found["newer"] is False
    assert found["summary"] == f"nothing newer: chat already serves {REPO} at {revision}"
    assert "nothing would be started" in house.ok("model", "canary", "chat", "--dry-run")
    commit(house, Behaviour(words="new"))
    found = house.json("model", "canary", "chat", "--engine", "keyed", "--dry-run")
    assert found["newer"] is True
    assert "weights (1 of 1 files" in found["changes"]
    assert "engine toy → keyed" in found["changes"]
    assert found["fetch_bytes"] == len(Behaviour(words="new").weights())
    again = house.json("model", "canary", "chat", "--revision", found["origin"]["revision"], "--dry-run")
    assert (again["engine"]["name"], again["name"]) == ("toy", "chat-canary")
    assert unchanged(house) == before
    house.ok("model", "canary", "chat")
    house.ok("model", "abort", "chat")
    on_disk = house.json("model", "canary", "chat", "--dry-run")
    assert (on_disk["newer"], on_disk["fetch_bytes"]) == (True, 0)
    assert "nothing, all of it is on disk" in house.ok("model", "canary", "chat", "--dry-run")


def test_a_dry_run_is_refused_what_the_verb_would_be(house: House) -> None:
    add_chat(house)
    commit(house, Behaviour(words="new"))
    house.ok("model", "canary", "chat")
    for words, status, says in (
        (("canary", "chat"), 3, "already has a canary"),
        (("canary", "nobody"), 4, "no model nobody"),
        (("add", "chat", "--repo", REPO), 3, "already a model"),
        (("add", "new", "--repo", REPO, "--engine", "vllm"), 3, "vllm serves a folder"),
        (("canary", "chat", "--detach"), 2, "--detach could do nothing"),
    ):
        done = house.ctl("model", *words, "--dry-run")
        assert (done.returncode, says in done.stderr) == (status, True), done.stderr


def test_local_weights_and_those_of_others_are_not_looked_into(house: House, tmp_path: Path) -> None:
    weights = tmp_path / "local.gguf"
    weights.write_bytes(Behaviour().weights())
    house.ok("model", "add", "chat", "--path", str(weights), "--engine", "toy")
    found = house.json("model", "canary", "chat", "--path", str(weights), "--dry-run")
    assert (found["newer"], found["files"], found["engine"]["name"]) == (None, [], "toy")
    with elsewhere() as theirs:
        found = house.json("model", "canary", "chat", "--url", theirs.url, "--dry-run")
        assert (found["newer"], found["engine"]["argv"], theirs.asked) == (True, [], [])


def test_engines_are_listed_with_their_programs_and_what_runs_on_them(house: House) -> None:
    add_chat(house)
    engines = {engine["name"]: engine for engine in house.json("engines", "list")}
    assert set(engines) == {
        *("llamacpp", "llama-server", "vllm", "sglang", "mlx", "tgi", "ollama", "external", "toy", "keyed"),
    }
    assert engines["toy"]["models"] == ["chat"]
    assert engines["vllm"]["program_path"] == f"{house.root}/bin/vllm"
    assert (engines["ollama"]["program"], engines["ollama"]["program_path"]) == ("ollama", None)
    assert engines["keyed"]["env"] == ["API_KEY"]
    assert (engines["keyed"]["configured"], engines["vllm"]["configured"]) == (True, False)
    shown = house.ok("engines", "list") + house.ok("engines", "show", "keyed") + house.ok("engines", "show", "external")
    assert "ollama is not on the path" in shown
    assert SECRET not in shown + str(engines)


def test_an_engine_is_shown_as_it_would_serve_a_model(house: House) -> None:
    add_chat(house, None, "--engine-arg=--projector=/dev/null")
    (own,) = [house.json("engines", "show", "toy", "--model", "chat")]
    assert own["argv"][:3] == [sys.executable, "-m", "tests.support.toy_engine"]
    assert own["argv"][-1] == "--projector=/dev/null"
    assert own["asked_as"] == "chat"
    other = house.json("engines", "show", "llama-server", "--model", "chat")
    assert other["argv"][3:] == ["--alias", "chat", "--host", "127.0.0.1", "--port", "{port}"]
    assert "--port {port}" in " ".join(house.ok("engines", "show", "llama-server", "--model", "chat").split())
    refused = house.ctl("engines", "show", "vllm", "--model", "chat")
    assert (refused.returncode, "GGUF files fit" in refused.stderr) == (3, True)
    unknown = house.ctl("engines", "show", "warp")
    assert (unknown.returncode, "there is no engine warp" in unknown.stderr) == (2, True)
    assert FOLDER_FILE not in str(own)
