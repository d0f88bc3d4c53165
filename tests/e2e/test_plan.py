"""A canary's plan and limits: carried out by the daemon, held and changed by people."""

import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from llmgwd.verdict.limits import KNOWN
from tests.support.house import House, add_chat, commit, house_on, wait_until
from tests.support.load import load_on
from tests.support.toy_engine import Behaviour

OLD, NEW = Behaviour(words="the old words here"), Behaviour(words="the new words here")
NO_TIMES = ("--limit", "ttft=off", "--limit", "speed=off")


def started(house: House, *words: str) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    house.ok("model", "canary", "chat", *words)


def canary(house: House) -> dict[str, Any]:
    found = house.canary()
    assert found is not None
    return found


def events(house: House, what: str) -> list[tuple[str, str, str, str]]:
    return [(e["by"], e["before"], e["after"], e["why"]) for e in house.json("events") if e["what"] == what]


def test_steps_are_given_one_after_the_other_by_llmgw_and_the_last_waits_for_a_person(house: House) -> None:
    started(house, "--steps", "20,50,80", "--hold", "500ms")
    wait_until(lambda: canary(house)["next"] == "waits for 20 more judged canary requests, then 50 %")
    assert canary(house)["share"] == 20
    with load_on(house):
        wait_until(lambda: canary(house)["share"] == 80)
        wait_until(lambda: "waits for a person" in canary(house)["next"])
    given = [(by, before, after, why) for by, before, after, why in events(house, "canary_share") if by == "llmgw"]
    assert given == [("llmgw", "20 %", "50 %", "step 2 of 3"), ("llmgw", "50 %", "80 %", "step 3 of 3")]


def test_a_plan_says_what_comes_next_and_when_survives_a_restart_and_can_be_held(house: House) -> None:
    started(house, "--steps", "20,50", "--hold", "1h")
    before = canary(house)
    assert before["next"] == "holds 20 %, then 50 %"
    assert before["next_at"] is not None
    assert "paused" in house.ok("model", "pause", "chat")
    assert canary(house)["next"] == "its plan is paused; `llmgw ctl model resume chat` lets it go on"
    house.stop()
    house.start()
    assert canary(house)["paused"]
    assert "goes on" in house.ok("model", "resume", "chat")
    after = canary(house)
    assert after["next"] == "holds 20 %, then 50 %"
    assert after["next_at"] > before["next_at"]
    assert "plan is held" in house.ok("model", "percent", "chat", "40")
    assert canary(house)["paused"]
    assert [by for by, *_ in events(house, "canary_paused")] == [canary(house)["by"]]
    house.ok("model", "resume", "chat")
    assert canary(house)["next"] == "holds 40 %, then 50 %"


def test_a_canary_that_a_person_takes_the_requests_from_is_not_promoted_by_llmgw(tmp_path: Path) -> None:
    with house_on(tmp_path, started=False) as house:
        house.settings["canary"]["min_age"] = "1s"
        house.start()
        started(house, "--steps", "50", "--auto-promote", "--hold", "1h", *NO_TIMES)
        all_off = house.ctl("model", "limits", "chat", *(word for name in KNOWN for word in ("--limit", f"{name}=off")))
        assert (all_off.returncode, "every limit off" in all_off.stderr) == (2, True), all_off.stderr
        with load_on(house):
            wait_until(lambda: canary(house)["verdict"]["state"] == "fine", 90)
        assert "plan is held" in house.ok("model", "percent", "chat", "0")
        assert canary(house)["paused"]
        house.ok("model", "resume", "chat")
        assert "its share is 0" in canary(house)["next"]


def test_a_fine_canary_is_promoted_by_llmgw(tmp_path: Path) -> None:
    with house_on(tmp_path, started=False) as house:
        house.settings["canary"]["min_age"] = "1s"
        house.start()
        started(house, "--percent", "50", "--auto-promote", *NO_TIMES)
        with load_on(house):
            wait_until(lambda: house.canary() is None, 90)
        ended = house.json("model", "canaries", "--ended")[0]
        assert ended["phase"] == "promoted"
        assert ended["reason"] == "promoted by llmgw"
        assert house.ask()[1]["choices"][0]["message"]["content"] == "the new words here"


def test_the_verdict_is_explained_metric_by_metric(house: House) -> None:
    started(house, "--percent", "50", "--limit", "bad_answers=+3", "--limit", "rejected=off")
    with load_on(house):
        wait_until(lambda: canary(house)["verdict"]["metrics"][0]["canary_n"] > 50)
    verdict = canary(house)["verdict"]
    assert verdict["state"] == "undecided"
    metrics = {metric["metric"]: metric for metric in verdict["metrics"]}
    bad = metrics["bad_answers"]
    assert (bad["limit"], bad["canary_value"], bad["stable_value"]) == (0.03, 0, 0)
    assert bad["low"] <= 0 <= bad["high"]
    assert metrics["rejected"]["state"] == "off"
    shown = house.ok("model", "canaries", "chat")
    assert "bad answers" in shown
    assert "+3.0 pt" in shown


def test_limits_can_be_changed_on_a_running_canary_and_the_change_is_logged(house: House) -> None:
    started(house, "--percent", "50")
    assert "judged anew by ttft 1.5 ×" in house.ok("model", "limits", "chat", "--limit", "ttft=1.5")
    assert canary(house)["limits"]["ttft"] == 1.5
    assert [(before, after) for _, before, after, _ in events(house, "canary_limits")] == [("ttft 1.2 ×", "ttft 1.5 ×")]
    assert "already" in house.ok("model", "limits", "chat", "--limit", "ttft=1.5")
    some = house.ok("model", "limits", "chat", "--limit", "ttft=1.4", "--limit", "speed=off", "--limit", "rejected=off")
    assert "judged anew by ttft 1.4 ×; chat-canary is not judged by speed, rejected any more" in some
    everything_off = [word for name in KNOWN for word in ("--limit", f"{name}=off")]
    assert "chat-canary is not judged any more" in house.ok("model", "limits", "chat", *everything_off)
    house.ok("model", "limits", "chat", "--limit", "ttft=1.5")
    house.stop()
    house.start()
    assert canary(house)["limits"]["ttft"] == 1.5


def test_a_canary_that_is_undecided_at_its_deadline_is_told_of_or_taken_out(house: House) -> None:
    started(house, "--deadline", "300ms")
    wait_until(lambda: events(house, "canary_undecided"))
    assert canary(house)["phase"] == "serving"
    house.ok("model", "abort", "chat")
    house.ok("model", "canary", "chat", "--deadline", "300ms", "--on-deadline", "abort")
    wait_until(lambda: house.canary() is None)
    by, *_, why = events(house, "canary_aborted")[-1]
    assert (by, why) == ("llmgw", "still undecided at its deadline")


def test_a_plan_that_its_deadline_holds_is_let_go_on_by_a_person(house: House) -> None:
    started(house, "--steps", "20,50", "--hold", "1ms", "--deadline", "300ms")
    wait_until(lambda: events(house, "canary_undecided"))
    held = "undecided past its deadline: gets no further share until it is fine"
    assert canary(house)["next"] == f"{held}; `llmgw ctl model resume chat` lets it go on"
    house.ok("model", "pause", "chat")
    assert canary(house)["next"] == "its plan is paused; `llmgw ctl model resume chat` lets it go on"
    assert "goes on" in house.ok("model", "resume", "chat")
    late = "; undecided past its deadline"
    assert canary(house)["next"] == f"waits for 20 more judged canary requests, then 50 %{late}"
    assert "is not paused" in house.ok("model", "resume", "chat")
    house.ok("model", "percent", "chat", "0")
    house.ok("model", "resume", "chat")
    gives = "`llmgw ctl model percent chat N` gives it requests"
    assert canary(house)["next"] == f"nothing: its share is 0{late}; {gives}"


def test_a_canary_that_hangs_is_taken_out_though_its_clients_leave(house: House) -> None:
    add_chat(house, OLD)
    commit(house, Behaviour(words="the new words here", hangs_after=3))
    house.ok("model", "canary", "chat", "--percent", "50")
    body = b'{"model": "chat", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    def ask() -> None:
        with socket.create_connection(("127.0.0.1", house.gateway_port)) as impatient:
            impatient.settimeout(1.5)
            impatient.sendall(request)
            answer = b""
            with contextlib.suppress(TimeoutError):
                while b"[DONE]" not in answer and (came := impatient.recv(65536)):
                    answer += came
                    # Stable, with which the canary is compared, may be slow on a busy machine: it is waited for.
                    impatient.settimeout(0.3 if b"x-llmgw-arm: canary" in answer else 60)

    def ask_some() -> bool:
        # Looking starts a program, which takes longer than asking where the machine is busy.
        for _ in range(5):
            ask()
        return house.canary() is None

    wait_until(ask_some, 240)
    ended = house.json("model", "canaries", "--ended")[0]
    assert ended["phase"] == "rolled_back"
    assert "time to first token" in ended["reason"]


def ask_until_gone(house: House) -> None:
    """Asks, whatever comes of it, until there is no canary."""

    def ask() -> bool:
        for _ in range(10):
            with contextlib.suppress(OSError):
                house.ask()
        return house.canary() is None

    wait_until(ask, 60)


def test_answers_that_are_refused_by_the_canary_alone_take_it_out(house: House) -> None:
    add_chat(house, OLD)
    commit(house, Behaviour(words="the new words here", refuse_after=3))
    house.ok("model", "canary", "chat", "--percent", "50")

    ask_until_gone(house)
    assert house.json("model", "canaries", "--ended")[0]["phase"] == "rolled_back"


def test_an_outage_of_both_sides_takes_the_canary_out_and_says_how_to_start_it_again(house: House) -> None:
    add_chat(house, Behaviour(words="the old words here", fail_after=40))
    commit(house, Behaviour(words="the new words here", fail_after=40))
    house.ok("model", "canary", "chat", "--percent", "50")

    ask_until_gone(house)
    reason = house.json("model", "canaries", "--ended")[0]["reason"]
    assert "stable was down, so the canary is judged on its own" in reason
    assert house.ctl("model", "canary", "chat").returncode == 3
    house.ok("model", "canary", "chat", "--again")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--steps 50,25", "steps must rise"),
        ("--steps 0,25", "step of 0 %"),
        ("--steps five", "no steps"),
        ("--steps 5,25 --percent 10", "give one of them"),
        ("--steps 5,25 --hold soon", "no duration"),
        ("--limit tfft=1.2", "there is no limit 'tfft'"),
        ("--limit ttft=-3", "expected 0.1 to 100"),
        ("--limit ttft", "is no limit"),
        ("--deadline never", "no duration"),
    ],
)
def test_plans_and_limits_that_cannot_be_are_refused_as_usage(house: House, words: str, says: str) -> None:
    add_chat(house, OLD)
    done = house.ctl("model", "canary", "chat", *words.split())
    assert done.returncode == 2, done.stderr
    assert says in " ".join(done.stderr.split())
    assert house.canary() is None
