"""Nobody notices: clients that ask all the time, while verbs move the model, race each other, or meet what is down."""

import os
import signal
import threading

import pytest

from tests.support.house import House, add_chat, commit, wait_until
from tests.support.load import load_on
from tests.support.toy_engine import Behaviour

OLD, NEW = Behaviour(words="the old words", token_s=0.002), Behaviour(words="the new words", token_s=0.002)


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param({"fail_after": 3}, id="answers 500"),
        pytest.param({"ends_after": 3}, id="dies, and refuses connections until it is up again, to die again"),
    ],
)
def test_a_canary_that_is_down_hard_costs_clients_nothing(house: House, trouble: dict[str, int]) -> None:
    add_chat(house, OLD)
    commit(house, Behaviour(words="the new words", **trouble))  # type: ignore[arg-type]
    house.ok("model", "canary", "chat", "--percent", "25")
    with load_on(house):
        wait_until(lambda: house.canary() is None, 60)
    assert house.json("model", "canaries", "--ended")[0]["phase"] == "rolled_back"


def test_promoting_a_canary_whose_engine_is_down_is_refused_and_stable_serves_on(house: House) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    stable = house.engine_pids()
    house.ok("model", "canary", "chat", "--percent", "50")
    (weights,) = (house.state / "weights").glob(f"*/{newest(house)}/chat.gguf")
    weights.chmod(0o600)
    weights.write_bytes(Behaviour(loads=False).weights())
    (pid,) = house.engine_pids() - stable
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "is not ready" in house.ctl("model", "promote", "chat").stderr)
    refused = house.ctl("model", "promote", "chat")
    assert refused.returncode == 3
    assert "cannot take chat's place" in refused.stderr
    assert "abort chat" in refused.stderr
    assert {house.ask()[0] for _ in range(6)} == {"stable"}
    house.ok("model", "abort", "chat")
    assert house.engine_pids() == stable


def newest(house: House) -> str:
    canary = house.canary()
    assert canary is not None
    revision = canary["origin"]["revision"]
    assert isinstance(revision, str)
    return revision


def in_parallel(house: House, *verbs: tuple[str, ...]) -> list[tuple[int, str]]:
    """Runs commands at the same time; each one's status and words."""
    results: list[tuple[int, str]] = [(0, "")] * len(verbs)

    def run(number: int, words: tuple[str, ...]) -> None:
        done = house.ctl(*words)
        results[number] = (done.returncode, done.stdout + done.stderr)

    threads = [threading.Thread(target=run, args=each) for each in enumerate(verbs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_of_two_canaries_at_once_exactly_one_wins_and_the_other_is_told_why(house: House) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    results = in_parallel(house, *[("model", "canary", "chat")] * 3)
    assert sorted(status for status, _ in results) == [0, 3, 3]
    assert all("has a running job" in said or "already has a canary" in said for status, said in results if status)


@pytest.mark.parametrize("turn", range(3))
def test_abort_and_promote_at_once_leave_one_story(house: House, turn: int) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    house.ok("model", "canary", "chat", "--percent", "50")
    with load_on(house):
        verbs = [("model", "promote", "chat"), ("model", "abort", "chat"), ("model", "abort", "chat")]
        turned = [*verbs[turn:], *verbs[:turn]]
        told = list(zip(turned, in_parallel(house, *turned), strict=True))
        wait_until(lambda: house.canary() is None and not house.json("status")["jobs"])
    phase = house.json("model", "canaries", "chat", "--ended")[0]["phase"]
    said = house.ask()[1]["choices"][0]["message"]["content"]
    assert (phase, said) in [("promoted", "the new words"), ("aborted", "the old words")]
    # Whoever was told that it is done finds it so, and the others were told that it is not.
    assert [result[0] == 0 for verb, result in told if "promote" in verb] == [phase == "promoted"], told
    assert any(result[0] == 0 for verb, result in told if "abort" in verb) is (phase == "aborted"), told
    assert len(house.engine_pids()) == 1
    assert house.model()["ready"] == 1


def test_sigterm_with_jobs_under_way_ends_everything(house: House) -> None:
    commit(house, Behaviour(load_s=600))
    for name in ("one", "two", "three"):
        house.ok("model", "add", name, "--repo", "acme/chat-GGUF", "--engine", "toy", "--detach")
    wait_until(lambda: len(house.engine_pids()) == 3)
    assert house.stop() == 0
    assert house.engine_pids() == set()


def test_an_engine_that_is_declared_otherwise_is_started_anew_by_a_reload(house: House) -> None:
    weights = house.root / "w.gguf"
    weights.write_bytes(OLD.weights())
    settings = {**house.settings, "models": [{"name": "base", "path": str(weights), "engine": "toy"}]}
    house.reload(settings)
    wait_until(lambda: house.ctl("model", "show", "base").returncode == 0 and house.model("base")["ready"] == 1)
    before = house.engine_pids()
    toy = {**house.settings["engines"]["toy"], "env": {"COLOUR": "blue"}}
    house.reload({**settings, "engines": {"toy": toy}})
    wait_until(lambda: house.engine_pids() and not house.engine_pids() & before)
    assert {event["by"] for event in house.json("events") if event["model"] == "base"} == {"configuration"}
