"""A canary that differs from its model in more than its weights: promote takes that over, rollback brings it back."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgwd.domain.gpus import Gpu
from tests.support.behaving_engines import programs
from tests.support.house import REPO, House, add_chat, commit, house_on, wait_until
from tests.support.small_machine import GIB, Size, put_on
from tests.support.toy_engine import ARGV, FOLDER_FILE, Behaviour

OTHER_REPO = "acme/other-GGUF"
GPUS = tuple(Gpu(number, f"GPU-{number}", "A100", 80 * GIB, 80 * GIB) for number in range(2))
FOLDER = {FOLDER_FILE: Behaviour(words="from a folder").weights(), "config.json": b"{}", "tokenizer.json": b"{}"}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """It has the programs of the presets on its path, a second toy, and two GPUs."""
    with house_on(tmp_path, started=False) as fresh:
        fresh.settings["engines"]["twin"] = {"argv": [*ARGV], "slots": 3}
        fresh.own_env = {"PATH": f"{programs(tmp_path / 'bin')}:{os.environ['PATH']}"}
        put_on(fresh, Size(gpus=GPUS))
        fresh.start()
        yield fresh


def runs_on(house: House) -> tuple[str, list[str], str]:
    shown = house.model()
    return shown["engine"], shown["engine_args"], shown["origin"]["repo"]


def test_engine_arguments_and_repository_move_with_a_promote_and_back_with_a_rollback(house: House) -> None:
    add_chat(house, Behaviour(words="old"), "--engine-arg=--projector=/dev/null")
    commit(house, Behaviour(words="new"), OTHER_REPO)
    house.ok("model", "canary", "chat", "--repo", OTHER_REPO, "--engine", "twin", "--percent", "50")
    # Arguments of one engine are nothing to another.
    changes = (
        "repository acme/chat-GGUF → acme/other-GGUF, engine toy → twin, engine arguments --projector=/dev/null → none"
    )
    assert changes in house.model()["canary_changes"]
    assert changes in (house.canary() or {})["changes"]
    assert changes in " ".join(house.ok("model", "show", "chat").split())
    house.ok("model", "promote", "chat")
    assert runs_on(house) == ("twin", [], OTHER_REPO)
    assert changes in house.model()["changes"]
    assert changes in house.json("model", "canaries", "--ended")[0]["changes"]
    house.ok("model", "rollback", "chat")
    assert runs_on(house) == ("toy", ["--projector=/dev/null"], REPO)
    assert house.ask()[1]["choices"][0]["message"]["content"] == "old"
    house.ok("model", "rollback", "chat")
    assert runs_on(house) == ("twin", [], OTHER_REPO)


def test_another_quantisation_moves_with_a_promote_and_back_with_a_rollback(house: House) -> None:
    small, large = "chat-Q4_K_M.gguf", "chat-Q8_0.gguf"
    house.hub.commit(REPO, {small: Behaviour(words="small").weights(), large: Behaviour(words="large").weights()})
    house.ok("model", "add", "chat", "--repo", REPO, "--engine", "toy")
    assert house.model()["origin"]["files"] == [small]
    house.ok("model", "canary", "chat", "--quant", "Q8_0")
    house.ok("model", "promote", "chat")
    assert house.model()["origin"]["files"] == [large]
    # What is newer for it is of its quantisation from now on.
    house.hub.commit(REPO, {small: Behaviour(words="smaller").weights()})
    assert house.json("model", "canary", "chat", "--dry-run")["newer"] is False
    house.ok("model", "rollback", "chat")
    assert house.model()["origin"]["files"] == [small]


def test_the_same_local_weights_are_tried_on_another_engine(house: House, tmp_path: Path) -> None:
    weights = tmp_path / "local.gguf"
    weights.write_bytes(Behaviour().weights())
    house.ok("model", "add", "chat", "--path", str(weights), "--engine", "toy")
    refused = house.ctl("model", "canary", "chat")
    assert (refused.returncode, "no repository" in refused.stderr) == (3, True)
    house.ok("model", "canary", "chat", "--engine", "twin")
    assert house.model()["canary_changes"] == "the same weights, engine toy → twin"
    assert (house.canary() or {})["origin"]["path"] == str(weights)
    house.ok("model", "promote", "chat")
    assert house.model()["engine"] == "twin"


def test_what_was_rolled_back_is_how_it_ran_when_the_weights_are_stables_own(house: House) -> None:
    add_chat(house)
    house.ok("model", "canary", "chat", "--engine", "twin")
    house.ok("model", "promote", "chat")
    house.ok("model", "rollback", "chat")
    again = house.ctl("model", "canary", "chat", "--engine", "twin")
    assert (again.returncode, "was rolled back before" in again.stderr) == (3, True)
    house.ok("model", "canary", "chat", "--engine-arg=--projector=/dev/null")
    house.ok("model", "abort", "chat")
    house.ok("model", "canary", "chat", "--engine", "twin", "--again")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "mlx", "tgi"])
def test_an_engine_is_not_given_weights_that_it_cannot_load(house: House, engine: str) -> None:
    add_chat(house)
    done = house.ctl("model", "canary", "chat", "--engine", engine)
    assert done.returncode == 3
    assert "failed at step repository" in done.stderr
    assert f"{engine} serves a folder of safetensors, and {REPO} at" in done.stderr
    assert "GGUF files fit llama-server and llamacpp and ollama" in done.stderr
    assert house.canary() is None


def test_of_a_repository_with_both_an_engine_gets_what_it_can_load(house: House) -> None:
    house.hub.commit(REPO, {**FOLDER, "chat-Q8_0.gguf": Behaviour(words="from a file").weights()})
    house.ok("model", "add", "chat", "--repo", REPO, "--engine", "llama-server")
    assert house.ask()[1]["choices"][0]["message"]["content"] == "from a file"
    house.ok("model", "canary", "chat", "--engine", "vllm", "--percent", "50")
    _, reply = house.ask(headers={"x-llmgw-arm": "canary"})
    assert (reply["choices"][0]["message"]["content"], reply["model"]) == ("from a folder", "chat")


def test_gpus_that_another_engine_needs_move_with_a_promote_and_back_with_a_rollback(house: House) -> None:
    house.hub.commit(REPO, {**FOLDER, "chat-Q8_0.gguf": Behaviour().weights()})
    house.ok("model", "add", "chat", "--repo", REPO, "--engine", "llama-server")
    assert [each["gpus"] for each in house.model()["replicas"]] == [[]]
    house.ok("model", "canary", "chat", "--engine", "vllm")
    assert house.model()["canary_changes"].endswith("engine llama-server → vllm, GPUs none → 1")
    house.ok("model", "promote", "chat")
    assert [each["gpus"] for each in house.model()["replicas"]] == [["GPU-0"]]
    house.ok("model", "canary", "chat", "--gpus", "0")
    assert house.model()["canary_changes"] == "the same weights, GPUs 1 → none"
    house.ok("model", "abort", "chat")
    house.ok("model", "rollback", "chat")
    assert (house.model()["engine"], house.model()["gpus"]) == ("llama-server", 0)


def test_an_engine_that_cuts_what_is_in_flight_when_it_ends_is_ended_only_when_nothing_is(house: House) -> None:
    slow = Behaviour(words=" ".join(["word"] * 30), token_s=0.05)
    house.hub.commit(REPO, {**FOLDER, FOLDER_FILE: slow.weights()})
    house.ok("model", "add", "chat", "--repo", REPO, "--engine", "vllm")
    house.hub.commit(REPO, FOLDER)
    house.ok("model", "canary", "chat", "--percent", "0")
    heard: list[bytes] = []

    def listen() -> None:
        with house.stream() as lines:
            heard.extend(lines)

    client = threading.Thread(target=listen)
    client.start()
    wait_until(lambda: house.in_flight("chat", "stable") == 1)
    house.ok("model", "promote", "chat")
    client.join()
    assert sum(b'"word "' in line for line in heard) == 30
    assert heard[-2:] == [b"data: [DONE]\n", b"\n"]
