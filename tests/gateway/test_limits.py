"""Deadlines and the bound on connections, on a worker with small ones."""

import json
import threading
import time
from collections.abc import Iterator

import pytest

from llmgwd.protocol.link import ArmRoute, ModelRoute
from llmgwd.protocol.samples import Arm, Outcome
from tests.gateway.answers import HELLO, ROLE, answer, says
from tests.gateway.client import Client, ask, request
from tests.gateway.conftest import Rig
from tests.gateway.upstream import Connection, Request, Script
from tests.support.house import wait_until

CHAT = "/v1/chat/completions"
CONNECTIONS = 4


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A worker in a hurry, with room for four connections."""
    options = ["--head-timeout", "0.5", "--body-timeout", "0.5", "--reply-timeout", "0.6", "--idle-timeout", "1.5"]
    options += ["--upstream-idle", "0.4", "--upstream-idle-connections", "2", "--max-connections", str(CONNECTIONS)]
    rig = Rig(tmp_path_factory.mktemp("hasty"), *options)
    yield rig
    rig.close()


# clients


def test_a_connection_over_the_limit_is_told_and_closed(hasty: Rig) -> None:
    held = [_admitted(hasty) for _ in range(CONNECTIONS)]
    for sends in (b"", request("/health"), request(CHAT, {"model": "x"})):
        with Client(hasty.port) as client:
            client.send(sends)
            reply = client.read()
            assert (reply.status, reply.code, reply.headers["connection"]) == (503, "too_many_connections", "close")
            assert "retry-after" in reply.headers
            assert client.is_closed()
    assert held[0].ask("/health").status == 200
    for each in held:
        each.close()
    _await_room(hasty)


def test_a_slow_body_is_timed_out(hasty: Rig) -> None:
    with Client(hasty.port) as client:
        client.send(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        reply = client.read()
        assert (reply.status, reply.code) == (408, "request_timeout")
        assert "body" in reply.json["error"]["message"]
        assert client.is_closed()


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_a_body_that_drips_is_timed_out_although_it_never_stops(hasty: Rig, chunked: bool) -> None:
    how, drop = ("Transfer-Encoding: chunked", b"1\r\nx\r\n") if chunked else ("Content-Length: 99999", b"x")
    with Client(hasty.port) as client:
        client.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{how}\r\n\r\n".encode())
        assert _drips_until_answered(client, drop)
        assert client.read().status == 408


def test_a_head_that_drips_is_timed_out(hasty: Rig) -> None:
    with Client(hasty.port) as client:
        client.send(b"GET /health HTTP/1.1\r\n")
        assert _drips_until_answered(client, b"X: y\r\n")
        assert client.read().status == 408


def test_an_idle_connection_is_closed_without_a_word(hasty: Rig) -> None:
    with Client(hasty.port) as client:
        assert client.ask("/health").status == 200
        assert client.is_closed()


def test_a_client_that_does_not_read_its_last_reply_gives_its_place_back(hasty: Rig) -> None:
    # The engine's name differs, so that the reply is written in one piece when all of it is there.
    reply = json.dumps(answer("x" * 8_000_000, model="engine")).encode()
    engine = hasty.upstream(lambda connection, _: connection.reply(200, reply))
    name = hasty.name()
    hasty.publish(ModelRoute(name, ArmRoute("a" * 40, (hasty.replica(engine, "engine"),))))
    held = [_admitted(hasty, receive_buffer=4096) for _ in range(CONNECTIONS)]
    for count, each in enumerate(held, 1):
        each.send(request(CHAT, {"model": name}, "Connection: close"))
        hasty.daemon.await_total(name, count)
    assert hasty.daemon.sample(name).outcomes == {Outcome.OK: CONNECTIONS}
    _await_room(hasty)
    for each in held:
        each.close()


# engines


def silent(connection: Connection, request: Request) -> None:
    connection.wait_gone()


def half_a_head(connection: Connection, request: Request) -> None:
    connection.send(b"HTTP/1.1 200 OK\r\nContent-Ty")
    connection.wait_gone()


def head_only(connection: Connection, request: Request) -> None:
    connection.start_stream()
    connection.wait_gone()


def hangs_in_the_middle(connection: Connection, request: Request) -> None:
    connection.start_stream()
    connection.chunk(ROLE + HELLO)
    connection.wait_gone()


def hangs_in_a_document(connection: Connection, request: Request) -> None:
    connection.send(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"a":')
    connection.wait_gone()


# A head without a body has not been passed on, so that it stands in nobody's way.
BEFORE: dict[str, Script] = {"silent": silent, "half a head": half_a_head, "head only": head_only}
AFTER: dict[str, Script] = {"in a stream": hangs_in_the_middle, "in JSON": hangs_in_a_document}


@pytest.mark.parametrize("case", BEFORE)
def test_an_engine_that_hangs_before_its_reply_is_a_504(hasty: Rig, case: str) -> None:
    name = hasty.serve(BEFORE[case])
    with Client(hasty.port) as client:
        reply = client.ask(CHAT, {"model": name})
        assert (reply.status, reply.code) == (504, "upstream_failed")
        assert client.ask("/health").status == 200
    hasty.daemon.await_total(name, 1)
    assert hasty.daemon.sample(name).outcomes == {Outcome.ERROR: 1}


@pytest.mark.parametrize("case", AFTER)
def test_an_engine_that_hangs_in_its_reply_ends_it_without_an_end(hasty: Rig, case: str) -> None:
    name = hasty.serve(AFTER[case])
    with Client(hasty.port) as client:
        reply = client.ask(CHAT, {"model": name, "stream": case != "in JSON"})
        assert not reply.whole
        assert client.is_closed()
    hasty.daemon.await_total(name, 1)
    assert hasty.daemon.sample(name).outcomes == {Outcome.ERROR: 1}


@pytest.mark.parametrize("case", BEFORE)
def test_a_canary_that_hangs_before_the_first_byte_is_rescued(hasty: Rig, case: str) -> None:
    name = hasty.serve(says("good"), canary=BEFORE[case])
    reply = ask(hasty.port, CHAT, {"model": name})
    assert (reply.status, reply.headers["x-llmgw-rescued"]) == (200, "1")
    hasty.daemon.await_total(name, 1)
    assert hasty.daemon.sample(name, Arm.CANARY).outcomes == {Outcome.ERROR: 1}


def test_comments_keep_a_slow_engine_alive(hasty: Rig) -> None:
    def thinks(connection: Connection, request: Request) -> None:
        connection.start_stream()
        for _ in range(8):
            threading.Event().wait(0.15)
            connection.chunk(b": thinking\n\n")
        connection.chunk(HELLO + b"data: [DONE]\n\n")
        connection.end_stream()

    name = hasty.serve(thinks)
    reply = ask(hasty.port, CHAT, {"model": name, "stream": True})
    assert reply.whole
    assert reply.body.endswith(b"[DONE]\n\n")


def test_connections_to_engines_are_closed_when_idle_and_kept_up_to_a_number(hasty: Rig) -> None:
    together = threading.Barrier(3)
    closed: list[float] = []
    done = threading.Semaphore(0)

    def script(connection: Connection, request: Request) -> None:
        together.wait(10)
        says()(connection, request)
        answered = time.monotonic()
        connection.wait_gone()
        closed.append(time.monotonic() - answered)
        done.release()

    engine = hasty.upstream(script)
    name = hasty.serve(engine)
    clients = [Client(hasty.port) for _ in range(3)]
    for client in clients:
        client.send(request(CHAT, {"model": name}))
    for client in clients:
        assert client.read().status == 200
        client.close()
    for _ in range(3):
        assert done.acquire(timeout=10)
    # One too many goes at once; the others when their time is over, and not before it.
    assert len([each for each in closed if each > 0.35]) == 2
    assert engine.connections == 3
    _await_room(hasty)


def _drips_until_answered(client: Client, drop: bytes) -> bool:
    client.socket.settimeout(0.05)
    for _ in range(200):
        client.send(drop)
        try:
            answered = client._more()
        except TimeoutError:
            continue
        client.socket.settimeout(10)
        return answered
    return False


def _await_room(rig: Rig) -> None:
    """Returns once the worker has noticed that connections were closed, or has closed them."""
    _admitted(rig).close()


def _admitted(rig: Rig, *, receive_buffer: int | None = None) -> Client:
    """A connection that has its place: one that was closed a moment ago may still take it up."""
    admitted: list[Client] = []

    def is_admitted() -> bool:
        client = Client(rig.port, receive_buffer=receive_buffer)
        if client.ask("/health").status == 200:
            admitted.append(client)
            return True
        client.close()
        return False

    wait_until(is_admitted, 10.0, "room")
    return admitted[0]
