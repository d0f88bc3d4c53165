"""Ten thousand requests of every kind under a share: the canary's part is exact (G3), and nothing is miscounted."""

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from llmgwd.protocol.link import ArmRoute, CanaryRoute, ModelRoute, ReplicaRoute
from llmgwd.protocol.samples import Arm, Outcome
from tests.gateway.answers import PLAIN_STREAM, answer
from tests.gateway.client import Client, Reply, request
from tests.gateway.conftest import CANARY_REVISION, STABLE_REVISION, Rig

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
REQUESTS, CLIENTS, AT_ONCE = 10_000, 4, 50
FAILS_EVERY = 10


def whole(value: object, status: int = 200) -> bytes:
    body = json.dumps(value).encode()
    head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
    return head + body


def chunked(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


ANSWERS = {
    CHAT.encode(): whole(answer()),
    COMPLETIONS.encode(): whole({"choices": [{"text": "a", "index": 0, "finish_reason": "stop"}]}),
    EMBEDDINGS.encode(): whole({"data": [{"embedding": [1.0]}]}),
}
STREAM = chunked(b"".join(PLAIN_STREAM))
FAILURE = whole({"error": {"message": "x"}}, 500)


class Engine(asyncio.Protocol):
    """Answers whole requests as fast as it can; of those for a canary it fails some."""

    seen = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        # The gateway sends one request at a time, in one piece when it is as small as these.
        path = data.split(b" ", 2)[1]
        if b"-canary" in data:
            Engine.seen += 1
            if Engine.seen % FAILS_EVERY == 0:
                self._transport.write(FAILURE)
                return
        self._transport.write(STREAM if b'"stream": true' in data else ANSWERS[path])


@pytest.fixture(scope="module")
def engine_port() -> Iterator[int]:
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(loop.create_server(Engine, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield server.sockets[0].getsockname()[1]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


class Part:
    """What one client sent and got."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.dice = random.Random(seed)
        self.counted: Counter[str] = Counter()

    def ask(self, port: int) -> None:
        kinds = self.dice.choices(
            ["chat", "stream", "text", "embed", "session", "stable", "canary", "nobody"],
            [40, 40, 10, 10, 5, 2, 2, 2],
            k=REQUESTS // CLIENTS,
        )
        with Client(port) as client:
            for at in range(0, len(kinds), AT_ONCE):
                some = kinds[at : at + AT_ONCE]
                client.send(b"".join(self._request(kind) for kind in some))
                for kind in some:
                    self._note(kind, client.read())

    def _request(self, kind: str) -> bytes:
        path = {"text": COMPLETIONS, "embed": EMBEDDINGS}.get(kind, CHAT)
        body = {"model": "nobody" if kind == "nobody" else self.name, "stream": kind == "stream"}
        headers = {
            "session": (f"x-llmgw-session: {self.dice.randrange(1000)}",),
            "stable": ("x-llmgw-arm: stable",),
            "canary": ("x-llmgw-arm: canary",),
        }.get(kind, ())
        return request(path, body, *headers)

    def _note(self, kind: str, reply: Reply) -> None:
        if kind == "nobody":
            assert reply.status == 404
            return
        if kind in ("stable", "canary"):
            self.counted["forced"] += 1
            assert reply.headers["x-llmgw-arm"] == kind
            return
        assert reply.status == 200
        is_canarys = reply.headers["x-llmgw-arm"] == "canary" or "x-llmgw-rescued" in reply.headers
        self.counted["session" if kind == "session" else "split"] += 1
        self.counted[("session " if kind == "session" else "") + ("canary" if is_canarys else "stable")] += 1
        self.counted["rescued"] += "x-llmgw-rescued" in reply.headers


@pytest.mark.parametrize("share", [5, 25])
def test_the_share_of_ten_thousand_mixed_requests_is_exact(rig: Rig, engine_port: int, share: int) -> None:
    name = rig.name()
    arms = [
        ArmRoute(revision, (ReplicaRoute(f"{served}-{engine_port}", "127.0.0.1", engine_port, served, False),))
        for revision, served in ((STABLE_REVISION, name), (CANARY_REVISION, f"{name}-canary"))
    ]
    rig.publish(ModelRoute(name, arms[0], canary=CanaryRoute(f"c-{name}", share, arms[1])))
    parts = [Part(name, seed) for seed in range(CLIENTS)]
    threads = [threading.Thread(target=part.ask, args=(rig.port,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = sum((part.counted for part in parts), Counter[str]())
    assert abs(got["canary"] - got["split"] * share / 100) <= 1
    assert got["canary"] + got["stable"] == got["split"] > 9000
    rig.daemon.await_total(name, got["split"] + got["session"] + got["forced"])
    stable, canary = (rig.daemon.sample(name, arm) for arm in Arm)
    assert sum(stable.outcomes.values()) == got["stable"] + got["session stable"]
    assert sum(canary.outcomes.values()) == got["canary"] + got["session canary"]
    assert stable.forced + canary.forced == got["forced"]
    assert canary.outcomes[Outcome.ERROR] == canary.rescued == got["rescued"] > 0
    assert stable.outcomes.keys() == {Outcome.OK}
