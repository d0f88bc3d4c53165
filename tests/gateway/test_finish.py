"""The end of a worker: told so, it drains; nothing else ends it."""

import signal
import threading

import pytest

from llmgwd.protocol.link import Finish
from llmgwd.protocol.samples import Outcome
from tests.gateway.answers import DONE, HELLO, STOP, says
from tests.gateway.client import Client, ask, request
from tests.gateway.conftest import Rig
from tests.gateway.upstream import Connection, Request
from tests.support.house import wait_until

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("how", ["Finish", "SIGTERM"])
def test_finishing_lets_streams_end_and_reports_them(own_rig: Rig, how: str) -> None:
    release = threading.Event()

    def script(connection: Connection, request: Request) -> None:
        connection.start_stream()
        connection.chunk(HELLO)
        release.wait(10)
        connection.chunk(STOP + DONE)
        connection.end_stream()

    name = own_rig.serve(script)
    with Client(own_rig.port) as busy, Client(own_rig.port) as idle:
        assert idle.ask("/health").status == 200
        busy.send(request(CHAT, {"model": name, "stream": True}))
        head = busy.read_until(b"\r\n\r\n")
        assert b"200" in head
        if how == "Finish":
            own_rig.daemon.send(Finish(20))
        else:
            own_rig.process.send_signal(signal.SIGTERM)
        assert idle.is_closed()
        with pytest.raises(ConnectionRefusedError):
            Client(own_rig.port)
        assert own_rig.process.poll() is None
        release.set()
        rest = busy.read_rest()
    assert rest.endswith(b"0\r\n\r\n")
    assert own_rig.process.wait(10) == 0
    own_rig.daemon.await_total(name, 1)
    assert own_rig.daemon.sample(name).outcomes == {Outcome.OK: 1}


def test_a_reply_during_the_drain_says_close(own_rig: Rig) -> None:
    release, begun = threading.Event(), threading.Event()

    def script(connection: Connection, request: Request) -> None:
        begun.set()
        release.wait(10)
        says()(connection, request)

    name = own_rig.serve(script)
    with Client(own_rig.port) as client, Client(own_rig.port) as idle:
        client.send(request(CHAT, {"model": name}))
        assert begun.wait(10)
        own_rig.daemon.send(Finish(20))
        assert idle.is_closed()
        release.set()
        reply = client.read()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert own_rig.process.wait(10) == 0


def test_what_does_not_end_in_time_is_cut(own_rig: Rig) -> None:
    begun = threading.Event()

    def script(connection: Connection, request: Request) -> None:
        begun.set()
        connection.wait_gone()

    name = own_rig.serve(script)
    with Client(own_rig.port) as client:
        client.send(request(CHAT, {"model": name}))
        assert begun.wait(10)
        own_rig.daemon.send(Finish(0.2))
        assert client.is_closed()
    assert own_rig.process.wait(10) == 0
    own_rig.daemon.await_total(name, 1)
    assert own_rig.daemon.sample(name).outcomes == {Outcome.CANCELLED: 1}


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_other_signals_do_not_end_it(own_rig: Rig, name: str) -> None:
    # It listens before it runs; only what it answers shows that it has its signals in hand.
    assert ask(own_rig.port, "/health").status == 200
    own_rig.process.send_signal(getattr(signal, name))
    assert ask(own_rig.port, "/health").status == 200
    own_rig.daemon.stop()
    assert ask(own_rig.port, "/health").status == 200
    own_rig.process.send_signal(signal.SIGTERM)
    assert own_rig.process.wait(10) == 0


def test_a_worker_that_is_replaced_takes_one_more_request_on_a_kept_connection_and_asks_to_connect_anew(
    own_rig: Rig,
) -> None:
    name = own_rig.serve(says())
    with Client(own_rig.port) as kept:
        assert kept.ask(CHAT, {"model": name}).status == 200
        own_rig.daemon.send(Finish(20, is_replaced=True))
        wait_until(lambda: refuses(own_rig.port))
        assert own_rig.process.poll() is None
        reply = kept.ask(CHAT, {"model": name})
        assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert own_rig.process.wait(10) == 0
    own_rig.daemon.await_total(name, 2)


def refuses(port: int) -> bool:
    try:
        Client(port).close()
    except ConnectionRefusedError:
        return True
    return False


def test_whoever_the_kernel_had_connected_is_answered(own_rig: Rig) -> None:
    assert ask(own_rig.port, "/health").status == 200
    # It cannot take them while it stands still; when it goes on it is to end.
    own_rig.process.send_signal(signal.SIGSTOP)
    clients = [Client(own_rig.port) for _ in range(150)]
    for client in clients[::2]:
        client.send(request("/health"))
    own_rig.process.send_signal(signal.SIGTERM)
    own_rig.process.send_signal(signal.SIGCONT)
    assert {client.read().status for client in clients[::2]} == {200}
    with pytest.raises(ConnectionRefusedError):
        Client(own_rig.port)
    assert all(client.is_closed() for client in clients)
    assert own_rig.process.wait(10) == 0
