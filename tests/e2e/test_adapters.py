"""Adapters end to end: fetched like weights, served beside the model, and through a promotion without a failure."""

import json
import signal
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.house import FILE, REPO, House, add_chat, commit, house_on, wait_until
from tests.support.toy_engine import Behaviour

LORA, LORA_FILE = "acme/legal-lora", "legal-lora.gguf"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with house_on(tmp_path) as own:
        yield own


def ask(house: House, model: str, *, stream: bool = False) -> tuple[int, str]:
    """Status and the words of the answer, which must carry the name that was asked for."""
    body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
    request = urllib.request.Request(
        f"{house.gateway}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            answer = json.load(reply)
            assert answer["model"] == model
            return reply.status, answer["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def listed(house: House) -> list[str]:
    with urllib.request.urlopen(f"{house.gateway}/v1/models", timeout=5) as reply:
        return [model["id"] for model in json.load(reply)["data"]]


def add_with_adapters(house: House) -> str:
    """`chat` with the adapters `legal` of a repository and `sql` of this machine; the commit of `legal`."""
    sha = house.hub.commit(LORA, {LORA_FILE: Behaviour(words="in legal words").weights(), "README.md": b"x"})
    (house.root / "sql.gguf").write_bytes(Behaviour(words="in sql").weights())
    local = f"sql={house.root / 'sql.gguf'}"
    add_chat(house, Behaviour(words="plain"), "--alias", "gpt", "--adapter", f"legal={LORA}", "--adapter", local)
    return str(sha)


def test_adapters_are_fetched_shown_listed_and_served(house: House) -> None:
    sha = add_with_adapters(house)
    assert listed(house) == sorted(["chat", "gpt", "chat:legal", "gpt:legal", "chat:sql", "gpt:sql"])
    assert ask(house, "chat") == (200, "plain")
    assert ask(house, "chat:legal") == ask(house, "gpt:legal") == (200, "in legal words")
    assert ask(house, "chat:sql") == (200, "in sql")
    legal, sql = house.model()["adapters"]
    assert (legal["name"], legal["origin"]["repo"], legal["origin"]["revision"]) == ("chat:legal", LORA, sha)
    assert legal["origin"]["files"] == [LORA_FILE]
    assert (sql["name"], sql["origin"]["path"]) == ("chat:sql", str(house.root / "sql.gguf"))
    assert sql["origin"]["content"]
    shown = house.ok("model", "show", "chat")
    assert "chat:legal" in shown
    assert LORA in shown
    steps = {step["name"]: step["detail"] for step in house.json("jobs", "list")[0]["steps"]}
    assert f"adapter legal: {LORA} at {sha[:7]}" in steps["repository"]
    assert "adapter sql: sha256" in steps["checksums"]
    with urllib.request.urlopen(f"http://127.0.0.1:{house.admin_port}/metrics", timeout=5) as reply:
        assert 'model="chat:legal"' in reply.read().decode()


def test_clean_up_leaves_what_an_adapter_is_served_from(house: House) -> None:
    sha = add_with_adapters(house)
    house.ok("weights", "prune")
    (revision,) = [each for each in house.json("weights", "list") if each["repo"] == LORA]
    assert (revision["revision"], revision["kept"], revision["used_by"]) == (sha, True, ["chat:legal"])
    house.ok("model", "remove", "chat", "--yes")
    wait_until(lambda: not house.json("weights", "list"), what="nothing needs them any more")


def test_adapters_serve_from_stable_beside_a_canary_and_through_its_promotion(house: House) -> None:
    add_with_adapters(house)
    commit(house, Behaviour(words="newer"))
    answered: Counter[tuple[str, tuple[int, str]]] = Counter()
    ended = threading.Event()

    def keep_asking(model: str) -> None:
        while not ended.is_set():
            answered[model, ask(house, model)] += 1

    clients = [threading.Thread(target=keep_asking, args=(model,)) for model in ("chat:legal", "chat:sql", "chat")]
    for client in clients:
        client.start()
    try:
        house.ok("model", "canary", "chat", "--percent", "50")
        assert "chat-canary" not in "".join(listed(house))
        wait_until(lambda: answered["chat", (200, "newer")] > 10, what="the canary answers")
        before = answered["chat:legal", (200, "in legal words")]
        wait_until(lambda: answered["chat:legal", (200, "in legal words")] > before + 10, what="the adapter answers")
        canarys = house.engine_pids() - {each["pid"] for each in house.model()["replicas"]}
        house.ok("model", "promote", "chat")
        assert {each["pid"] for each in house.model()["replicas"]} == canarys
        before = answered["chat:legal", (200, "in legal words")]
        wait_until(lambda: answered["chat:legal", (200, "in legal words")] > before + 10, what="and goes on")
    finally:
        ended.set()
        for client in clients:
            client.join()
    wrong = {key: count for key, count in answered.items() if key[1][0] != 200}
    assert wrong == {}
    assert {words for model, (_, words) in answered if model == "chat:legal"} == {"in legal words"}
    assert {words for model, (_, words) in answered if model == "chat:sql"} == {"in sql"}
    (canary,) = house.json("model", "canaries", "chat", "--ended")
    counted = canary["canary"]["outcomes"].get("ok", 0) + canary["stable"]["outcomes"].get("ok", 0)
    assert counted <= sum(count for (model, _), count in answered.items() if model == "chat")


def test_adapters_survive_a_crash_of_the_daemon_and_a_rollback(house: House) -> None:
    add_with_adapters(house)
    commit(house, Behaviour(words="newer"))
    house.ok("model", "update", "chat")
    assert ask(house, "chat") == (200, "newer")
    house.stop(signal.SIGKILL)
    assert ask(house, "chat:legal") == (200, "in legal words")
    house.start()
    wait_until(lambda: ask(house, "chat:sql") == (200, "in sql"))
    house.ok("model", "rollback", "chat")
    assert ask(house, "chat") == (200, "plain")
    assert ask(house, "chat:legal") == (200, "in legal words")


def test_declared_models_have_adapters(tmp_path: Path) -> None:
    for name, words in ((FILE, "plain"), ("legal.gguf", "in legal words")):
        (tmp_path / name).write_bytes(Behaviour(words=words).weights())
    entry = {
        "name": "base",
        "path": str(tmp_path / FILE),
        "engine": "toy",
        "adapters": {"legal": str(tmp_path / "legal.gguf")},
    }
    with house_on(tmp_path, {"models": [entry]}) as house:
        wait_until(lambda: ask(house, "base:legal") == (200, "in legal words"))
        assert house.model("base")["adapters"][0]["name"] == "base:legal"


def test_a_canary_on_an_engine_that_takes_no_adapters_is_refused(tmp_path: Path) -> None:
    with house_on(tmp_path, started=False) as house:
        house.settings["engines"]["plain"] = {"argv": house.settings["engines"]["toy"]["argv"]}
        house.start()
        add_with_adapters(house)
        done = house.ctl("model", "canary", "chat", "--engine", "plain")
        assert (done.returncode, "the engine plain takes no adapters" in done.stderr) == (2, True), done.stderr
        assert house.canary() is None


def test_what_would_be_run_has_the_adapters(house: House) -> None:
    sha = house.hub.commit(LORA, {LORA_FILE: Behaviour().weights()})
    commit(house, Behaviour())
    words = ("--repo", REPO, "--engine", "toy", "--adapter", f"legal={LORA}", "--dry-run")
    shown = house.json("model", "add", "chat", *words)
    argv = shown["engine"]["argv"]
    assert argv[argv.index("--adapter") + 1].startswith("chat:legal=")
    assert argv[argv.index("--adapter") + 1].endswith(f"{sha}/{LORA_FILE}")
    assert {file["path"] for file in shown["files"]} == {FILE, LORA_FILE}
    assert house.json("model", "list") == []


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("--adapter", "legal"), 2, "is no adapter; write NAME=ORG/REPO"),
        (("--adapter", "le:gal=a/b"), 2, "cannot be an adapter's name"),
        (("--adapter", "x=a/b", "--adapter", "x=c/d"), 2, "must all differ"),
        (("--adapter", "x=a/b", "--engine", "plain"), 2, "the engine plain takes no adapters"),
        (("--adapter", "x=no/such"), 1, "no/such"),
        (("--adapter", "x=/no/such.gguf"), 1, "cannot read /no/such.gguf"),
    ],
)
def test_adapters_that_cannot_be_are_refused(tmp_path: Path, words: tuple[str, ...], status: int, says: str) -> None:
    with house_on(tmp_path, started=False) as house:
        house.settings["engines"]["plain"] = {"argv": house.settings["engines"]["toy"]["argv"]}
        house.start()
        commit(house, Behaviour())
        engine = () if "--engine" in words else ("--engine", "toy")
        done = house.ctl("model", "add", "chat", "--repo", REPO, *engine, *words)
        assert (done.returncode, says in done.stderr) == (status, True), done.stderr
        assert house.json("model", "list") == []
