"""Models that somebody else serves: behind the gateway as any other, and neither started nor ended by it."""

import json
import signal
import subprocess
import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.elsewhere import certificate, elsewhere
from tests.support.house import House, add_chat, house_on, wait_until
from tests.support.toy_engine import Behaviour

KEY = "sk-very-secret-0123456789"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """It notices soon when others no longer answer."""
    with house_on(tmp_path, started=False) as fresh:
        fresh.settings["engines"]["external"] = {"probe_every": "200ms", "probe_timeout": "2s"}
        fresh.start()
        yield fresh


def add(house: House, url: str, *words: str) -> None:
    house.ok("model", "add", "chat", "--engine", "external", "--url", url, *words)


def words(house: House, arm: str = "stable") -> str:
    answered, reply = house.ask(headers={"x-llmgw-arm": arm})
    assert (answered, reply["model"]) == (arm, "chat")
    return str(reply["choices"][0]["message"]["content"])


def test_a_canary_of_it_is_another_url_and_is_promoted_and_rolled_back_as_any_other(house: House) -> None:
    with (
        elsewhere(Behaviour(words="old"), name="served-old") as old,
        elsewhere(Behaviour(words="new"), name="served-new") as new,
    ):
        add(house, old.url, "--served-name", "served-old")
        assert words(house) == "old"
        house.ok("model", "canary", "chat", "--url", new.url, "--served-name", "served-new", "--percent", "50")
        assert [words(house, arm) for arm in ("stable", "canary")] == ["old", "new"]
        assert {house.ask()[0] for _ in range(4)} == {"stable", "canary"}
        house.ok("model", "promote", "chat")
        shown = house.model()
        assert shown["origin"]["urls"] == [new.url]
        assert [replica["pid"] for replica in shown["replicas"]] == [None]
        assert words(house) == "new"
        house.ok("model", "rollback", "chat")
        assert words(house) == "old"
        refused = house.ctl("model", "canary", "chat", "--url", new.url, "--served-name", "served-new")
        assert (refused.returncode, "was rolled back before" in refused.stderr) == (3, True)
        house.ok("model", "canary", "chat", "--url", new.url, "--served-name", "served-new", "--again")
        house.ok("model", "abort", "chat")
        assert "nothing newer" in house.ok(
            "model", "canary", "chat", "--url", old.url, "--served-name", "served-old", "--again"
        )
        house.ok("model", "remove", "chat", "--yes")
        # Nobody ended them, and each was asked for its own name only.
        assert {model for _, model in old.asked} == {"served-old"}
        assert {model for _, model in new.asked} == {"served-new"}


def test_it_fails_when_it_does_not_answer_and_is_ready_again_when_it_does(house: House) -> None:
    with elsewhere() as theirs:
        port = theirs.server_address[1]
        add(house, theirs.url)
    wait_until(lambda: house.model()["replicas"][0]["state"] == "failed")
    assert "is asked again in" in house.model()["replicas"][0]["detail"]
    with pytest.raises(urllib.error.HTTPError, match="503"):
        house.ask()
    with elsewhere(Behaviour(words="again"), port=port):
        wait_until(lambda: house.model()["ready"] == 1)
        assert words(house) == "again"


def test_one_that_does_not_answer_is_not_added_and_the_way_on_is_said(house: House) -> None:
    with elsewhere(name="other") as theirs:
        done = house.ctl("model", "add", "chat", "--engine", "external", "--url", theirs.url)
    assert done.returncode == 1
    assert "failed at step replicas: /v1/chat/completions answered 404" in done.stderr
    assert f"ask it yourself at {theirs.url}" in done.stderr
    assert house.json("model", "list") == []


def test_each_url_is_a_replica(house: House) -> None:
    with elsewhere(Behaviour(words="one")) as one, elsewhere(Behaviour(words="two")) as two:
        add(house, one.url, "--url", two.url)
        assert {replica["address"] for replica in house.model()["replicas"]} == {one.url, two.url}
        assert {words(house) for _ in range(4)} == {"one", "two"}


def test_it_is_moved_to_another_url_without_a_canary(house: House) -> None:
    with elsewhere(Behaviour(words="one")) as one, elsewhere(Behaviour(words="two")) as two:
        add(house, one.url)
        house.ok("model", "update", "chat", "--url", two.url)
        assert words(house) == "two"
        assert house.json("model", "updates", "chat")[0]["summary"] == "served by others: there is no repository"
        refused = house.ctl("model", "canary", "chat")
        assert (refused.returncode, "with another --url URL" in refused.stderr) == (3, True)
        house.ok("model", "rollback", "chat")
        assert words(house) == "one"


def test_a_restart_of_the_daemon_costs_no_request(house: House) -> None:
    house.stop()
    house.options = ["--leave-running"]
    house.start()
    with elsewhere() as theirs:
        add(house, theirs.url)
        failed: list[object] = []
        answered = 0
        over = threading.Event()

        def ask() -> None:
            nonlocal answered
            while not over.is_set():
                try:
                    house.ask()
                    answered += 1
                except OSError as error:
                    failed.append(error)

        client = threading.Thread(target=ask)
        client.start()
        try:
            house.stop()
            house.start()
            before = answered
            wait_until(lambda: answered > before + 20)
        finally:
            over.set()
            client.join()
        assert failed == []
        house.options = []
        house.stop(signal.SIGINT)
    house.start()


def test_a_crash_loses_neither_the_model_nor_its_canary(house: House) -> None:
    with elsewhere(Behaviour(words="old")) as old, elsewhere(Behaviour(words="new")) as new:
        add(house, old.url)
        house.ok("model", "canary", "chat", "--url", new.url, "--percent", "50")
        house.stop(signal.SIGKILL)
        house.start()
        wait_until(lambda: "until its replica is ready" not in (house.canary() or {})["next"])
        assert words(house, "canary") == "new"
        assert words(house) == "old"
        house.ok("model", "promote", "chat")
        house.stop(signal.SIGKILL)
        house.start()
        wait_until(lambda: house.model()["ready"] == 1)
        assert words(house) == "new"


def test_tls_and_a_key_that_nobody_is_shown(house: House, tmp_path: Path) -> None:
    pem = certificate(tmp_path)
    key_file = tmp_path / "key"
    key_file.write_text(KEY + "\n")
    with elsewhere(key=KEY, tls=pem) as theirs:
        options = ("--url", theirs.url, "--key-file", str(key_file))
        refused = house.ctl("model", "add", "chat", "--engine", "external", *options)
        assert (refused.returncode, "CERTIFICATE_VERIFY_FAILED" in refused.stderr) == (1, True)
        house.stop()
        house.own_env = {"SSL_CERT_FILE": str(tmp_path / "cert.pem")}
        house.start()
        house.ok("model", "add", "chat", "--engine", "external", *options)
        # The client's own key, for the gateway, is not the one for them.
        _, reply = house.ask(headers={"authorization": "Bearer of-the-client"})
        assert reply["model"] == "chat"
        with house.stream() as lines:
            assert b"data: [DONE]\n" in list(lines)
        assert {authorization for authorization, _ in theirs.asked} == {f"Bearer {KEY}"}
        key_file.write_text("another\n")
        house.stop()
        house.start()
        wait_until(lambda: "answered 401" in house.model()["replicas"][0]["detail"])
        key_file.write_text(KEY)
        wait_until(lambda: house.model()["ready"] == 1)
    everything = [
        subprocess.run(["ps", "-ef"], capture_output=True, text=True, check=True).stdout,
        *(json.dumps(house.json(*asked)) for asked in (("model", "list"), ("status",), ("events",), ("jobs", "list"))),
        *(path.read_bytes().decode(errors="replace") for path in house.state.rglob("*") if path.is_file()),
        house.log.read_text(),
    ]
    assert not [text for text in everything if KEY in text]


def test_a_model_moves_to_others_and_back_to_its_own_engine(house: House) -> None:
    add_chat(house, Behaviour(words="here"))
    with elsewhere(Behaviour(words="there")) as theirs:
        house.ok("model", "canary", "chat", "--url", theirs.url, "--percent", "50")
        assert words(house, "canary") == "there"
        house.ok("model", "promote", "chat")
        shown = house.model()
        assert (shown["engine"], shown["engine_args"]) == ("external", [])
        house.ok("model", "rollback", "chat")
        assert (house.model()["engine"], words(house)) == ("toy", "here")


def test_declared_ones_are_served(house: House) -> None:
    with elsewhere(name="theirs") as theirs:
        house.stop()
        house.settings["models"] = [
            {"name": "chat", "engine": "external", "urls": [theirs.url], "served_name": "theirs"}
        ]
        house.start()
        wait_until(lambda: house.model()["ready"] == 1)
        assert words(house) == "hello from the toy engine"


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        (("--engine", "external", "--repo", "a/b"), 2, "serves nothing by itself"),
        (("--url", "http://127.0.0.1:9"), 2, "serves weights that are here"),
        (("--engine", "external", "--url", "http://x", "--quant", "Q8_0"), 2, "no use for --quant"),
        (("--engine", "external", "--url", "http://x", "--allow-unsafe"), 2, "no use for --allow-unsafe"),
        (("--repo", "a/b", "--key-file", "/k"), 2, "say how to ask a --url"),
        (("--engine", "external", "--url", "ftp://x"), 2, "neither http:// nor https://"),
        (("--engine", "external", "--url", "http://u:p@x"), 2, "--key-file FILE"),
        (("--engine", "external", "--url", "http://x/api/v1"), 2, "none but /v1"),
        (("--engine", "external", "--url", "http://x", "--engine-arg=-x"), 2, "no --engine-arg can reach it"),
        (("--engine", "external", "--url", "http://x", "--gpus", "1"), 2, "cannot be given GPUs"),
        (("--engine", "external", "--url", "http://x", "--replicas", "2"), 2, "repeat --url"),
        (("--engine", "external", "--url", "http://x", "--url", "http://x:80/v1/"), 2, "given twice"),
        (("--engine", "external", "--url", "http://x", "--key-file", "/no/such"), 3, "cannot be read"),
    ],
)
def test_what_does_not_go_together_is_refused(house: House, options: tuple[str, ...], status: int, says: str) -> None:
    done = house.ctl("model", "add", "chat", *options)
    assert (done.returncode, says in done.stderr) == (status, True), done.stderr
    assert "u:p" not in done.stderr
