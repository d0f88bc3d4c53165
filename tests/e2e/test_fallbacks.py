"""Fallbacks end to end: who answers when a model cannot, and what becomes of the lists."""

import json
import os
import signal
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.house import House, add_chat, commit, house_on, wait_until
from tests.support.toy_engine import Behaviour


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with house_on(tmp_path) as own:
        yield own


def add(house: House, name: str, behaviour: Behaviour, *words: str) -> None:
    weights = house.root / f"{name}.gguf"
    weights.write_bytes(behaviour.weights())
    house.ok("model", "add", name, "--path", str(weights), "--engine", "toy", *words)


def chat(house: House, model: str = "chat") -> tuple[int, str]:
    """Status, and the model that answered."""
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    request = urllib.request.Request(
        f"{house.gateway}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            assert json.load(reply)["model"] == model
            return reply.status, reply.headers["x-llmgw-model"]
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("x-llmgw-model", "")


def test_a_stable_whose_replicas_all_die_costs_no_request(house: House) -> None:
    add(house, "small", Behaviour(words="from the small one"))
    add_chat(house, Behaviour(), "--replicas", "2", "--fallback", "small", "--alias", "gpt")
    answered: Counter[tuple[int, str]] = Counter()
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            answered[chat(house, "gpt")] += 1

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        wait_until(lambda: answered[200, "chat"] > 20, what="chat answers")
        for replica in house.model()["replicas"]:
            os.kill(replica["pid"], signal.SIGKILL)
        wait_until(lambda: answered[200, "small"] > 5, what="small answers in its place")
        before = answered[200, "chat"]
        wait_until(lambda: house.model()["ready"] == 2, what="chat is restarted")
        wait_until(lambda: answered[200, "chat"] > before + 20, what="chat answers again")
    finally:
        ended.set()
        for client in clients:
            client.join()
    assert set(answered) == {(200, "chat"), (200, "small")}


def test_a_canary_on_the_way_falls_back_after_stable(house: House) -> None:
    add(house, "small", Behaviour())
    add_chat(house, Behaviour(fail_after=1), "--fallback", "small")
    # The smoke test and the probe before it are its only good answers.
    commit(house, Behaviour(words="newer", fail_after=2))
    house.ok("model", "canary", "chat", "--percent", "100", "--limit", "bad_answers=off")
    assert house.json("model", "canaries", "chat")[0]["phase"] == "serving"
    assert chat(house) == (200, "small")
    house.ok("model", "abort", "chat")
    assert chat(house) == (200, "small")


def test_show_has_the_fallbacks_and_one_that_is_removed_leaves_the_lists(house: House) -> None:
    add(house, "small", Behaviour(), "--alias", "tiny")
    add(house, "other", Behaviour())
    add_chat(house, Behaviour(), "--fallback", "tiny", "--fallback", "other")
    assert house.model()["fallbacks"] == ["small", "other"]
    assert "fallbacks" in house.ok("model", "show", "chat")
    house.ok("model", "remove", "small", "--yes")
    assert house.model()["fallbacks"] == ["other"]
    (event,) = [each for each in house.json("events") if each["what"] == "fallback_removed"]
    assert (event["model"], event["before"], event["after"]) == ("chat", "small", "other")


@pytest.mark.parametrize(
    ("fallback", "status", "says"),
    [("nobody", 4, "there is no model nobody"), ("chat", 2, "cannot fall back on itself")],
)
def test_a_fallback_that_cannot_be_is_refused_before_anything_starts(
    house: House, fallback: str, status: int, says: str
) -> None:
    done = house.ctl("model", "add", "chat", "--path", str(house.config), "--fallback", fallback)
    assert (done.returncode, says in done.stderr) == (status, True), done.stderr
    assert house.json("jobs", "list") == []


def test_declared_models_fall_back_on_each_other(tmp_path: Path) -> None:
    weights = tmp_path / "weights.gguf"
    weights.write_bytes(Behaviour(fail_after=1).weights())
    sound = tmp_path / "sound.gguf"
    sound.write_bytes(Behaviour().weights())
    one = {"name": "one", "path": str(weights), "engine": "toy", "fallbacks": ["two"]}
    two = {"name": "two", "path": str(sound), "engine": "toy", "fallbacks": ["one"]}
    with house_on(tmp_path, {"models": [one, two]}) as house:
        wait_until(lambda: chat(house, "one") == (200, "two"), what="two answers for one")
        house.config.write_text(json.dumps({**house.settings, "models": [one]}))
        assert house.process is not None
        house.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "models[0].fallbacks: there is no model two in this file" in house.log.read_text())
        assert chat(house, "one") == (200, "two")
