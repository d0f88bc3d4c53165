"""A canary's way in, its share, and its ways out, with real processes and sockets."""

import hashlib
import subprocess
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from llmgwd.domain.jobs import STEPS
from llmgwd.protocol import messages as m
from llmgwd.protocol.states import JobKind
from tests.support.control_peer import Peer
from tests.support.house import BIN, FILE, REPO, House, add_chat, commit, wait_until
from tests.support.toy_engine import Behaviour

OLD, NEW = Behaviour(words="the old words"), Behaviour(words="the new words")


def steps(job: dict[str, object]) -> dict[str, str]:
    assert isinstance(job["steps"], list)
    return {step["name"]: step["state"] for step in job["steps"]}


def test_the_main_job(house: House) -> None:
    old = add_chat(house, OLD)
    new = commit(house, NEW)
    job = house.json("model", "canary", "chat", "--percent", "20")
    assert steps(job) == dict.fromkeys(STEPS[JobKind.CANARY], "done")
    answers: Counter[tuple[str, str]] = Counter()
    for _ in range(100):
        arm, reply = house.ask()
        assert reply["model"] == "chat"
        answers[arm, reply["choices"][0]["message"]["content"]] += 1
    assert answers == {("stable", "the old words"): 80, ("canary", "the new words"): 20}
    canary = wait_until(
        lambda: (found := house.canary()) and found["canary"]["requests"] + found["stable"]["requests"] == 100 and found
    )
    assert canary["share"] == canary["share_real"] == 20
    assert canary["stable"]["requests"] == 80
    house.ok("model", "promote", "chat")
    shown = house.model()
    assert shown["origin"]["revision"] == new
    assert shown["previous"]["revision"] == old
    assert house.canary() is None
    assert house.ask() == house.ask()
    assert house.ask()[1]["choices"][0]["message"]["content"] == "the new words"


def test_the_candidate_is_the_model_in_everything_but_its_weights(house: House) -> None:
    add_chat(house, OLD, "--alias", "gpt", "--replicas", "2", "--description", "for all")
    sha = commit(house, NEW)
    house.ok("model", "canary", "chat")
    names = {model["name"] for model in house.json("model", "list")}
    assert names == {"chat"}
    canary = house.canary()
    assert canary is not None
    assert canary["name"] == "chat-canary"
    assert canary["origin"] == {
        "repo": REPO,
        "revision": sha,
        "files": [FILE],
        "path": None,
        "size_bytes": len(NEW.weights()),
        "content": hashlib.sha256(NEW.weights()).hexdigest(),
        "context_length": None,
        "quantisation": None,
        "urls": [],
        "served_name": None,
    }
    assert canary["share"] == 10
    assert len(house.engine_pids()) == 3


def test_the_same_names_are_listed_before_during_and_after(house: House) -> None:
    import urllib.request

    def listed() -> bytes:
        with urllib.request.urlopen(f"{house.gateway}/v1/models", timeout=5) as reply:
            return bytes(reply.read())

    add_chat(house, OLD, "--alias", "gpt")
    before = listed()
    commit(house, NEW)
    house.ok("model", "canary", "chat")
    during = listed()
    house.ok("model", "promote", "chat")
    assert before == during == listed()
    assert b'"chat"' in before
    assert b'"gpt"' in before
    assert b"canary" not in before


def test_an_alias_is_answered_under_its_own_name_on_both_arms(house: House) -> None:
    add_chat(house, OLD, "--alias", "gpt")
    commit(house, NEW)
    house.ok("model", "canary", "chat", "--percent", "50")
    seen = {(house.ask("gpt")[0], house.ask("gpt")[1]["model"]) for _ in range(4)}
    assert {name for _, name in seen} == {"gpt"}


def test_nothing_newer_starts_nothing_and_is_no_failure(house: House) -> None:
    add_chat(house)
    done = house.ctl("model", "canary", "chat")
    assert done.returncode == 0
    assert "nothing newer" in done.stdout
    assert house.canary() is None
    # A commit that changes none of the served files is not newer either.
    house.hub.commit(REPO, {"README.md": b"more words"})
    done = house.ctl("model", "canary", "chat")
    assert done.returncode == 0
    assert "changes none of the files" in done.stdout
    assert len(house.engine_pids()) == 1


@pytest.mark.parametrize(
    ("weights", "step", "says"),
    [
        pytest.param(Behaviour(loads=False), "placement", "these weights do not load", id="does not load"),
        pytest.param(Behaviour(status=500), "placement", "answered 500", id="healthy but cannot answer"),
        pytest.param(Behaviour(words=""), "smoke test", "answered with nothing", id="answers with nothing"),
        pytest.param(Behaviour(load_s=600), "placement", "not ready within 2 s", id="never ready"),
    ],
)
def test_a_canary_that_does_not_serve_is_taken_out_and_the_job_fails_there(
    house: House, weights: Behaviour, step: str, says: str
) -> None:
    add_chat(house, OLD)
    before = house.model()
    house.settings["engines"]["toy"]["ready_timeout"] = "2s"
    house.stop()
    house.start()
    wait_until(lambda: house.model()["ready"] == 1)
    commit(house, weights)
    done = house.ctl("model", "canary", "chat")
    assert done.returncode == 1
    assert says in done.stderr
    job = house.json("jobs", "list")[0]
    assert [name for name, state in steps(job).items() if state == "failed"] == [step]
    assert house.canary() is None
    assert house.model()["origin"] == before["origin"]
    assert len(house.engine_pids()) == 1
    assert house.ask()[0] == "stable"


def test_no_request_reaches_the_canary_before_it_has_answered(house: House) -> None:
    add_chat(house, OLD)
    commit(house, replace(NEW, load_s=1.0))
    job = house.ok("model", "canary", "chat", "--percent", "100", "--detach").split()[-1]
    arms: Counter[str] = Counter()
    while True:
        arm = house.ask()[0]
        if steps(house.json("jobs", "show", job))["split"] != "pending":
            break
        arms[arm] += 1
    assert set(arms) == {"stable"}
    wait_until(lambda: house.ask()[0] == "canary")


def test_a_share_can_be_changed_and_zero_keeps_the_canary_running(house: House) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    house.ok("model", "canary", "chat", "--percent", "0")
    assert Counter(house.ask()[0] for _ in range(20)) == {"stable": 20}
    assert "gets 50 %" in house.ok("model", "percent", "chat", "50")
    assert Counter(house.ask()[0] for _ in range(20)) == {"stable": 10, "canary": 10}
    house.ok("model", "percent", "chat", "0")
    assert Counter(house.ask()[0] for _ in range(20)) == {"stable": 20}
    assert len(house.engine_pids()) == 2
    shares = [(e["before"], e["after"], e["by"]) for e in house.json("events") if e["what"] == "canary_share"]
    assert [share[:2] for share in shares] == [("0 %", "0 %"), ("0 %", "50 %"), ("50 %", "0 %")]
    assert len({share[2] for share in shares}) == 1


def test_abort_takes_the_canary_out_and_from_then_on_nothing_reaches_it(house: House) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    house.ok("model", "canary", "chat", "--percent", "50")
    stop, after = threading.Event(), threading.Event()
    late: list[str] = []
    failures: list[str] = []

    def ask_on() -> None:
        while not stop.is_set():
            begun_after = after.is_set()
            try:
                arm, _ = house.ask()
            except OSError as error:
                failures.append(str(error))
                continue
            if begun_after and arm == "canary":
                late.append(arm)

    clients = [threading.Thread(target=ask_on) for _ in range(4)]
    for client in clients:
        client.start()
    assert "is out; stable serves everything" in house.ok("model", "abort", "chat")
    after.set()
    for _ in range(50):
        assert house.ask()[0] == "stable"
    stop.set()
    for client in clients:
        client.join()
    assert not late
    assert not failures
    assert house.canary() is None
    assert len(house.engine_pids()) == 1
    ended = house.json("model", "canaries", "chat", "--ended")[0]
    assert ended["phase"] == "aborted"
    assert "aborted by" in ended["reason"]


def test_abort_while_the_canary_is_still_being_prepared(house: House) -> None:
    add_chat(house, OLD)
    commit(house, replace(NEW, load_s=600))
    job = house.ok("model", "canary", "chat", "--detach").split()[-1]
    wait_until(lambda: house.canary() is not None)
    assert "before it was ready" in house.ok("model", "abort", "chat")
    assert house.json("jobs", "show", job)["state"] == "cancelled"
    assert house.canary() is None
    assert len(house.engine_pids()) == 1


def test_rollback_goes_back_without_a_download_and_remembers_what_it_left(house: House) -> None:
    old = add_chat(house, OLD)
    commit(house, NEW)
    house.ok("model", "canary", "chat")
    house.ok("model", "promote", "chat")
    house.hub.requests.clear()
    house.ok("model", "rollback", "chat")
    assert house.hub.requests.matching() == []
    assert house.model()["origin"]["revision"] == old
    assert house.ask()[1]["choices"][0]["message"]["content"] == "the old words"
    refused = house.ctl("model", "canary", "chat")
    assert refused.returncode == 3
    assert "was rolled back before" in refused.stderr
    assert "--again" in refused.stderr
    house.ok("model", "canary", "chat", "--again")


def test_a_canary_that_serves_worse_is_rolled_back_by_llmgw_with_its_figures(house: House) -> None:
    add_chat(house, OLD)
    sha = commit(house, replace(NEW, fail_after=3))
    watching = subprocess.Popen(
        [BIN / "llmgw", "ctl", "model", "canary", "chat", "--percent", "50", "--until-verdict"],
        env=house.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(lambda: (found := house.canary()) and found["phase"] == "serving")
    while (canary := house.canary()) is not None and canary["canary"]["requests"] < 50:
        assert house.ask()[1]["choices"]
    wait_until(lambda: house.canary() is None)
    said, _ = watching.communicate(timeout=20)
    assert watching.returncode == 5, said
    event = next(e for e in house.json("events") if e["what"] == "canary_rolled_back")
    assert event["by"] == "llmgw"
    assert "canary answers were bad" in event["why"]
    assert "on stable" in event["why"]
    assert event["why"] in said
    refused = house.ctl("model", "canary", "chat")
    assert refused.returncode == 3
    assert sha[:7] in refused.stderr
    assert house.ask()[0] == "stable"


def test_a_quiet_canary_keeps_its_share(house: House) -> None:
    add_chat(house, OLD)
    commit(house, replace(NEW, fail_after=3))
    house.ok("model", "canary", "chat", "--percent", "50")
    canary = house.canary()
    assert canary is not None
    peer = Peer(house.socket)
    peer.hear()
    peer.say(m.Hello("a test"))
    peer.say(m.WatchCanary(canary["id"]))
    # Each look tells its followers.
    for _ in range(8):
        seen = peer.hear().canary
        assert (seen.phase, seen.share, seen.verdict.state) == ("serving", 50, "undecided")
    peer.socket.close()


def test_forced_arms_are_served_and_not_judged(house: House) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    house.ok("model", "canary", "chat", "--percent", "10")
    for _ in range(10):
        assert house.ask(headers={"x-llmgw-arm": "canary"})[0] == "canary"
        assert house.ask(headers={"x-llmgw-arm": "stable"})[0] == "stable"
    canary = wait_until(lambda: (found := house.canary()) and found["canary"]["forced"] == 10 and found)
    assert canary["canary"]["requests"] == canary["stable"]["requests"] == 0


def test_a_session_stays_on_its_arm(house: House) -> None:
    add_chat(house, OLD)
    commit(house, NEW)
    house.ok("model", "canary", "chat", "--percent", "30")
    arms = {key: {house.ask(user=key)[0] for _ in range(3)} for key in (f"user{n}" for n in range(30))}
    assert all(len(seen) == 1 for seen in arms.values())
    at_30 = {key for key, seen in arms.items() if seen == {"canary"}}
    house.ok("model", "percent", "chat", "60")
    at_60 = {key for key in arms if house.ask(user=key)[0] == "canary"}
    assert at_30 < at_60


def test_a_canary_of_local_weights(house: House, tmp_path: Path) -> None:
    add_chat(house, OLD)
    path = tmp_path / "mine.gguf"
    path.write_bytes(NEW.weights())
    job = house.json("model", "canary", "chat", "--path", str(path), "--percent", "100")
    assert steps(job)["repository"] == "skipped"
    assert house.ask()[1]["choices"][0]["message"]["content"] == "the new words"
    house.ok("model", "promote", "chat")
    assert house.model()["origin"]["path"] == str(path)
    house.ok("model", "rollback", "chat")
    assert house.model()["origin"]["repo"] == REPO


def test_promote_keeps_the_canary_replica_and_replaces_every_old_one(house: House) -> None:
    add_chat(house, OLD, "--replicas", "2")
    commit(house, NEW)
    old = house.engine_pids()
    house.ok("model", "canary", "chat")
    (kept,) = house.engine_pids() - old
    house.ok("model", "promote", "chat")
    now = house.engine_pids()
    assert kept in now
    assert len(now) == 2
    assert not now & old
    assert house.model()["ready"] == 2


def test_promote_replaces_one_replica_at_a_time(house: House) -> None:
    add_chat(house, OLD, "--replicas", "3")
    commit(house, NEW)
    house.ok("model", "canary", "chat")
    promoting = house.begin("model", "promote", "chat")
    most, fewest_ready = 0, 4
    while promoting.poll() is None:
        shown = house.model()
        most = max(most, len(house.engine_pids()))
        fewest_ready = min(fewest_ready, shown["ready"])
    assert promoting.returncode == 0
    assert most == 4
    assert fewest_ready == 3
    assert len(house.engine_pids()) == 3


def test_a_promotion_whose_next_replica_fails_leaves_the_old_ones_serving_and_names_rollback(house: House) -> None:
    old = add_chat(house, OLD, "--replicas", "2")
    sha = commit(house, NEW)
    house.ok("model", "canary", "chat")
    (weights,) = (house.state / "weights").glob(f"*/{sha}/{FILE}")
    weights.chmod(0o600)
    weights.write_bytes(Behaviour(loads=False).weights())
    failed = house.ctl("model", "promote", "chat")
    assert failed.returncode == 1
    assert "the old replicas of chat serve on beside what is ready of the new" in failed.stderr
    assert "llmgw ctl model rollback chat" in failed.stderr
    assert house.canary() is None
    said = {house.ask()[1]["choices"][0]["message"]["content"] for _ in range(10)}
    assert said == {"the old words", "the new words"}
    house.ok("model", "rollback", "chat")
    assert house.model()["origin"]["revision"] == old
    assert house.model()["ready"] == 2
    assert len(house.engine_pids()) == 2
