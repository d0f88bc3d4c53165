"""What is newer on the hub: asked for, and noticed by the daemon itself."""

import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from tests.support.house import BIN, REPO, House, add_chat, commit, house_on, wait_until
from tests.support.local_hub import Fault
from tests.support.toy_engine import Behaviour


def test_updates_says_what_is_newer_and_what_is_not(house: House) -> None:
    add_chat(house)
    weights = house.root / "own.gguf"
    weights.write_bytes(Behaviour().weights())
    house.ok("model", "add", "own", "--path", str(weights), "--engine", "toy")
    chat, own = house.json("model", "updates")
    assert (chat["newer"], chat["summary"]) == (False, "nothing newer")
    assert (own["newer"], own["repo"]) == (False, None)
    house.hub.commit(REPO, {"README.md": b"words"})
    (chat,) = house.json("model", "updates", "chat")
    assert (chat["newer"], chat["summary"]) == (False, "no change in the files that are served")
    sha = commit(house, Behaviour(words="newer"))
    (chat,) = house.json("model", "updates", "chat")
    assert (chat["newer"], chat["latest"]) == (True, sha)
    assert sha[:7] in house.ok("model", "updates")
    assert house.ctl("model", "updates", "nobody").returncode == 4


def test_updates_are_chosen_as_an_update_would_choose_them(house: House) -> None:
    house.hub.commit(REPO, {"chat-Q8_0.gguf": Behaviour().weights(), "chat-Q4_0.gguf": b"other"})
    house.ok("model", "add", "chat", "--repo", REPO, "--quant", "Q8_0", "--engine", "toy")
    house.hub.commit(REPO, {"chat-Q8_0.gguf": None, "better-Q8_0.gguf": Behaviour().weights()})
    (chat,) = house.json("model", "updates", "chat")
    assert (chat["newer"], chat["summary"]) == (False, "no change in the files that are served")
    house.hub.commit(REPO, {"better-Q8_0.gguf": Behaviour(words="newer").weights()})
    (chat,) = house.json("model", "updates", "chat")
    assert (chat["newer"], chat["summary"].partition(" (")[0]) == (True, "weights")
    house.hub.commit(REPO, {"better-Q8_0.gguf": None})
    (chat,) = house.json("model", "updates", "chat")
    assert chat["newer"] is False
    assert chat["summary"].startswith("this revision has no Q8_0, which stable is served from; there is: Q4_0")


def test_a_hub_that_does_not_answer_is_said_and_moves_nothing(house: House) -> None:
    add_chat(house)
    house.hub.close()
    (chat,) = house.json("model", "updates", "chat", timeout_s=120)
    assert (chat["newer"], chat["latest"]) == (False, None)
    assert house.hub.endpoint.partition("//")[2] in chat["summary"]
    assert house.ask()[0] == "stable"


class Receiver(HTTPServer):
    """A webhook's other end; the first post is answered with 500."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ReceiverHandler)
        self.posts: list[dict[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/hook"


class ReceiverHandler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.posts.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(500 if len(self.server.posts) == 1 else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


def test_newer_weights_are_noticed_once_and_posted_to_the_webhook_until_it_takes_them(tmp_path: Path) -> None:
    receiver = Receiver()
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    with house_on(tmp_path, started=False) as house:
        house.settings["hub"]["check_every"] = "200ms"
        house.settings["notify"] = [{"kind": "webhook", "url": receiver.url, "events": ["newer_weights"]}]
        house.start()
        add_chat(house)
        sha = commit(house, Behaviour(words="newer"))
        wait_until(lambda: len(receiver.posts) == 2)
        assert receiver.posts[0] == receiver.posts[1]
        assert (receiver.posts[0]["what"], receiver.posts[0]["after"]) == ("newer_weights", sha)
        house.hub.requests.clear()
        house.hub.requests.wait_for("/api/models/*", count=4)
        assert len([event for event in house.json("events") if event["what"] == "newer_weights"]) == 1
    receiver.shutdown()
    receiver.server_close()


def test_an_answer_is_told_while_the_hub_still_lets_another_wait(house: House) -> None:
    add_chat(house)
    house.hub.commit("acme/slow", {"slow-Q8_0.gguf": Behaviour().weights()})
    house.ok("model", "add", "slow", "--repo", "acme/slow", "--engine", "toy")
    house.hub.faults.add(Fault("/api/models/acme/slow*", hang=True))
    words: list[str | bytes | Path] = [BIN / "llmgw", "ctl", "model", "updates"]
    with subprocess.Popen(words, env=house.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:
        assert asking.stderr is not None
        assert asking.stderr.readline() == "chat: nothing newer\n"
        assert asking.poll() is None
        house.hub.faults.clear()
        told, _ = asking.communicate(timeout=60)
    assert asking.returncode == 0
    assert "slow" in told
