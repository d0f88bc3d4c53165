"""What holds up a canary that could be promoted, and what does not."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.house import House, add_chat, commit, house_on, wait_until
from tests.support.load import load_on
from tests.support.toy_engine import Behaviour

ONLY_SPEED = [
    word
    for name in ("bad_answers", "ttft", "length_limited", "degenerate", "rejected")
    for word in ("--limit", f"{name}=off")
]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A daemon that takes three seconds to find a canary fine, and whose engine has four slots."""
    with house_on(tmp_path, started=False) as fresh:
        # Looks well above the quarter of a second by which workers book loads.
        fresh.settings["canary"] = {"min_age": "3s", "every": "1s"}
        fresh.settings["engines"]["toy"]["slots"] = 4
        fresh.start()
        yield fresh


def canary(house: House) -> dict[str, Any]:
    found = house.canary()
    assert found is not None
    return found


def ended(house: House) -> dict[str, Any]:
    wait_until(lambda: house.canary() is None, 90)
    last: dict[str, Any] = house.json("model", "canaries", "--ended")[0]
    return last


def limits_events(house: House) -> list[tuple[str, str]]:
    return [(event["before"], event["after"]) for event in house.json("events") if event["what"] == "canary_limits"]


def idles(seen: dict[str, Any]) -> dict[str, Any] | None:
    """What was seen, if it says so after requests enough for averages not to swing."""
    says_so = "idle" in seen["verdict"]["sentence"]
    return seen if says_so and seen["canary"]["requests"] >= 60 else None


def test_a_canary_that_idles_beside_a_full_stable_says_so_until_a_person_ignores_that(house: House) -> None:
    add_chat(house, Behaviour(words="the old words here", token_s=0.15))
    commit(house, Behaviour(words="the new words here", token_s=0.001))
    house.ok("model", "canary", "chat", "--percent", "50", *ONLY_SPEED)
    with load_on(house, clients=10):
        waiting = wait_until(lambda: idles(canary(house)), 60)
        assert waiting["verdict"]["state"] == "undecided"
        assert {m["metric"]: m["state"] for m in waiting["verdict"]["metrics"]}["speed"] == "undecided"
        assert waiting["stable"]["slots_busy"] >= 0.9
        assert waiting["canary"]["slots_busy"] <= 0.25
        assert waiting["stable"]["in_flight"] > waiting["canary"]["in_flight"] > 0
        assert waiting["canary"]["output_tokens_per_s"] > 0
        assert "slots busy" in house.ok("model", "canaries")
        assert "whatever the load" in house.ok("model", "limits", "chat", "--ignore-load")
        lifted = canary(house)
        assert lifted["ignores_load"]
        assert "idle" not in lifted["verdict"]["sentence"]
    assert limits_events(house) == [("uneven load holds it", "uneven load ignored")]


def test_that_load_is_ignored_is_kept_over_a_restart_logged_and_taken_back(house: House) -> None:
    add_chat(house)
    commit(house, Behaviour(words="the new words here"))
    house.ok("model", "canary", "chat", "--ignore-load")
    started = next(event for event in house.json("events") if event["what"] == "canary_started")
    assert started["why"] == "uneven load is ignored"
    house.stop()
    house.start()
    assert canary(house)["ignores_load"]
    assert "may be uneven" in house.ok("model", "canaries")
    assert "already" in house.ok("model", "limits", "chat", "--ignore-load")
    house.ok("model", "limits", "chat", "--no-ignore-load", "--limit", "ttft=1.5")
    assert not canary(house)["ignores_load"]
    assert limits_events(house) == [("ttft 1.2 ×, uneven load ignored", "ttft 1.5 ×, uneven load holds it")]
    assert house.ctl("model", "limits", "chat").returncode == 2


@contextmanager
def embeddings_for(house: House) -> Iterator[None]:
    """Four clients that ask for embeddings the whole time; every answer must be one."""
    stop, problems = threading.Event(), list[str]()

    def ask_on() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", house.gateway_port, timeout=20)
        while not stop.is_set() and not problems:
            connection.request("POST", "/v1/embeddings", json.dumps({"model": "chat", "input": "hi"}))
            reply = connection.getresponse()
            said = reply.read()
            if reply.status != 200 or b"embedding" not in said:
                problems.append(f"{reply.status}: {said!r}")
        connection.close()

    threads = [threading.Thread(target=ask_on) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert problems == []


def test_a_canary_of_an_embedding_model_is_promoted_though_nothing_has_a_first_token(house: House) -> None:
    add_chat(house, Behaviour(words="old"))
    commit(house, Behaviour(words="new"))
    house.ok("model", "canary", "chat", "--percent", "50", "--auto-promote")
    with embeddings_for(house):
        wait_until(lambda: "no request asks for text" in canary(house)["verdict"]["sentence"], 60)
        assert "no answer has one" in house.ok("model", "canaries")
        promoted = ended(house)
    assert promoted["reason"] == "promoted by llmgw"
    states = {metric["metric"]: metric["state"] for metric in promoted["verdict"]["metrics"]}
    assert (states["ttft"], states["speed"], states["bad_answers"]) == ("absent", "absent", "within")
