"""Clients that leave (G6) and clients that read slowly (G8)."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

import psutil
import pytest

from llmgwd.protocol.samples import Arm, Outcome
from tests.gateway.answers import HELLO, ROLE, chunk, says
from tests.gateway.client import Client, ask, request
from tests.gateway.conftest import Rig
from tests.gateway.upstream import Connection, Request

CHAT = "/v1/chat/completions"


class Watching:
    """An engine that goes as far as told, then notes whether the gateway hangs up within a second."""

    def __init__(self, before: Callable[[Connection], None]) -> None:
        self.before = before
        self.reached = threading.Event()
        self.gone: bool | None = None
        self.done = threading.Event()

    def __call__(self, connection: Connection, request: Request) -> None:
        self.before(connection)
        self.reached.set()
        self.gone = connection.wait_gone(2.0)
        self.done.set()


def nothing(connection: Connection) -> None:
    pass


def head(connection: Connection) -> None:
    connection.start_stream()


def part(connection: Connection) -> None:
    connection.start_stream()
    connection.chunk(ROLE + HELLO)


def half_json(connection: Connection) -> None:
    connection.send(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"a":')


STATES = {"waiting": nothing, "after the head": head, "streaming": part, "in a document": half_json}


@pytest.mark.parametrize("arm", ["stable", "canary"])
@pytest.mark.parametrize("state", STATES)
def test_a_client_that_leaves_takes_the_engines_connection_with_it(rig: Rig, state: str, arm: str) -> None:
    engine = Watching(STATES[state])
    name = rig.serve(engine, canary=engine, share=100 if arm == "canary" else 0)
    client = Client(rig.port)
    client.send(request(CHAT, {"model": name, "stream": True}))
    assert engine.reached.wait(10)
    client.close()
    assert engine.done.wait(10)
    assert engine.gone
    rig.daemon.await_total(name, 1)
    assert rig.daemon.sample(name, Arm(arm)).outcomes == {Outcome.CANCELLED: 1}
    rig.daemon.wait(lambda: set(rig.daemon.reports[-1].in_flight.values()) == {0}, "nothing left in flight")


def test_a_client_that_leaves_while_connecting_is_let_go(rig: Rig) -> None:
    # A listener whose queue is full answers no connection attempt.
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        name = rig.serve(port)
        client = Client(rig.port)
        client.send(request(CHAT, {"model": name}))
        rig.daemon.wait(lambda: 1 in rig.daemon.reports[-1].in_flight.values(), "in flight")
        client.close()
        rig.daemon.await_total(name, 1)
        assert rig.daemon.sample(name).outcomes == {Outcome.CANCELLED: 1}
        for filler in fillers:
            filler.close()


def test_a_connection_attempt_without_an_answer_is_an_error(rig: Rig) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        name = rig.serve(full.getsockname()[1])
        assert ask(rig.port, CHAT, {"model": name}).status == 502
        rig.daemon.await_total(name, 1)
        assert rig.daemon.sample(name).outcomes == {Outcome.ERROR: 1}
        for filler in fillers:
            filler.close()


def test_a_slow_reader_stops_its_engine_and_memory_stays_bounded(rig: Rig) -> None:
    block = chunk({"content": "x" * 60_000})
    total = 200 * 1024 * 1024
    sent = 0
    stuck = threading.Event()

    def flood(connection: Connection, request: Request) -> None:
        nonlocal sent
        connection.start_stream()
        connection.socket.settimeout(1.0)
        try:
            while sent < total:
                connection.chunk(block)
                sent += len(block)
        except TimeoutError:
            stuck.set()

    name = rig.serve(flood)
    memory = psutil.Process(rig.process.pid)
    before = memory.memory_info().rss
    with Client(rig.port, receive_buffer=65536) as client:
        client.send(request(CHAT, {"model": name, "stream": True}))
        assert stuck.wait(20)
        assert sent < total / 4
        assert memory.memory_info().rss - before < 8 * 1024 * 1024
        assert ask(rig.port, "/health").status == 200
    rig.daemon.await_total(name, 1)
    assert rig.daemon.sample(name).outcomes == {Outcome.CANCELLED: 1}


def test_a_reader_that_catches_up_gets_everything(rig: Rig) -> None:
    block = chunk({"content": "x" * 60_000})

    def flood(connection: Connection, request: Request) -> None:
        connection.stream(*[block] * 200, chunk({}, "stop"))

    name = rig.serve(flood)
    with Client(rig.port, receive_buffer=65536) as client:
        client.send(request(CHAT, {"model": name, "stream": True}))
        assert client.read().body == block * 200 + chunk({}, "stop")
        assert client.ask("/health").status == 200
    rig.daemon.await_total(name, 1)
    # The pace was the client's, so the engine's is not known.
    assert rig.daemon.sample(name).token_time == {}


def test_a_client_that_leaves_while_reading_slowly_is_noticed(rig: Rig) -> None:
    gone = threading.Event()

    def flood(connection: Connection, request: Request) -> None:
        connection.start_stream()
        try:
            while True:
                connection.chunk(HELLO * 200)
        except OSError:
            gone.set()

    name = rig.serve(flood)
    client = Client(rig.port, receive_buffer=65536)
    client.send(request(CHAT, {"model": name, "stream": True}))
    client.read_until(b"Hello")
    rig.daemon.wait(lambda: 1 in rig.daemon.reports[-1].in_flight.values(), "in flight")
    client.close()
    assert gone.wait(20)
    rig.daemon.await_total(name, 1)
    assert rig.daemon.sample(name).outcomes == {Outcome.CANCELLED: 1}


def test_a_request_behind_a_stuck_one_waits_its_turn(rig: Rig) -> None:
    name = rig.serve(says("x" * 3_000_000))
    with Client(rig.port, receive_buffer=65536) as client:
        client.send(request(CHAT, {"model": name}) * 3)
        assert [len(client.read().body) > 3_000_000 for _ in range(3)] == [True] * 3


def test_a_client_that_asks_and_never_reads_is_read_no_more(rig: Rig) -> None:
    asks = request("/health") * 2000
    sent, most = 0, 64 * 1024 * 1024
    memory = psutil.Process(rig.process.pid)
    before = memory.memory_info().rss
    with Client(rig.port, receive_buffer=65536) as client:
        client.socket.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            while sent < most:
                sent += client.socket.send(asks)
        assert sent < most
        assert memory.memory_info().rss - before < 8 * 1024 * 1024
        assert ask(rig.port, "/health").status == 200


def test_a_client_that_sends_on_behind_its_request_and_leaves_is_noticed(rig: Rig) -> None:
    engine = Watching(nothing)
    name = rig.serve(engine)
    client = Client(rig.port)
    client.send(request(CHAT, {"model": name}))
    assert engine.reached.wait(10)
    client.send(b"x" * 40 * 1024 * 1024)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    assert engine.done.wait(10)
    assert engine.gone
    rig.daemon.await_total(name, 1)
    assert rig.daemon.sample(name).outcomes == {Outcome.CANCELLED: 1}
