"""An engine that breaks HTTP breaks one request, and nothing else."""

import threading

import pytest

from llmgwd.protocol.samples import Outcome
from tests.gateway.answers import answer, says
from tests.gateway.client import Client, ask, request
from tests.gateway.conftest import Rig
from tests.gateway.upstream import Connection, Request, Script

CHAT = "/v1/chat/completions"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def sends(data: bytes, *, close: bool = False) -> Script:
    def script(connection: Connection, request: Request) -> None:
        connection.send(data)
        if close:
            connection.close()

    return script


def endless_head(connection: Connection, request: Request) -> None:
    connection.send(OK)
    for _ in range(200):
        connection.send(b"X-Filler: " + b"x" * 1000 + b"\r\n")


BEFORE_THE_FIRST_BYTE: dict[str, Script] = {
    "not HTTP": sends(b"220 smtp ready\r\n\r\n"),
    "two lengths": sends(OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
    "both lengths": sends(OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
    "a negative length": sends(OK + b"Content-Length: -2\r\n\r\n{}"),
    "a bad chunk size": sends(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"),
    "a protocol switch": sends(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
    "a status of nothing": sends(b"HTTP/1.1 007 Bond\r\nContent-Length: 2\r\n\r\n{}"),
    "a bare CR in a header": sends(OK + b"X-A: 1\rX-B: 2\r\nContent-Length: 2\r\n\r\n{}"),
    "a NUL in a header": sends(OK + b"X-A: 1\x00\r\nContent-Length: 2\r\n\r\n{}"),
    "an endless head": endless_head,
    "half a head": sends(OK, close=True),
    "a length with a suffix": sends(OK + b"Content-Length: 2x\r\n\r\n{}"),
    "an enormous length": sends(OK + b"Content-Length: 99999999999999999999999\r\n\r\n{}"),
    "an unknown coding": sends(OK + b"Transfer-Encoding: chunked, gzip\r\n\r\n2\r\n{}\r\n0\r\n\r\n", close=True),
    "an unknown coding alone": sends(OK + b"Transfer-Encoding: gzip\r\n\r\n{}", close=True),
    "chunked twice": sends(
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", close=True
    ),
    "a chunk size that overflows": sends(OK + b"Transfer-Encoding: chunked\r\n\r\n10000000000000002\r\n{}\r\n"),
    "a header without a colon": sends(OK + b"Oops\r\nContent-Length: 2\r\n\r\n{}"),
    "a request": sends(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "interim replies and then nothing": sends(b"HTTP/1.1 102 Processing\r\n\r\n" * 3, close=True),
    "silence": sends(b"", close=True),
}


@pytest.mark.parametrize("case", BEFORE_THE_FIRST_BYTE)
def test_a_reply_that_cannot_be_understood_is_a_502(rig: Rig, case: str) -> None:
    name = rig.serve(BEFORE_THE_FIRST_BYTE[case])
    with Client(rig.port) as client:
        reply = client.ask(CHAT, {"model": name})
        assert (reply.status, reply.code) == (502, "upstream_failed")
        assert client.ask("/health").status == 200
    rig.daemon.await_total(name, 1)
    assert rig.daemon.sample(name).outcomes == {Outcome.ERROR: 1}


def test_bytes_after_a_reply_reach_nobody(rig: Rig) -> None:
    extra = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"

    dropped = threading.Semaphore(0)

    def script(connection: Connection, request: Request) -> None:
        connection.json(answer())
        connection.send(extra)
        if connection.wait_gone():
            dropped.release()

    name = rig.serve(script)
    with Client(rig.port) as client:
        for _ in range(5):
            assert client.ask(CHAT, {"model": name}).json == answer()
            # Were the next request on its way already, nobody could tell whose reply this is.
            assert dropped.acquire(timeout=10)


@pytest.mark.parametrize("more", [b"x", OK + b"X-Second: 1\r\nContent-Length: 4\r\n\r\nevil"], ids=["byte", "reply"])
def test_what_follows_a_reply_in_the_same_piece_is_dropped_with_the_connection(rig: Rig, more: bytes) -> None:
    engine = rig.upstream(sends(OK + b"Content-Length: 2\r\n\r\n{}" + more))
    name = rig.serve(engine)
    with Client(rig.port) as client:
        for _ in range(3):
            reply = client.ask(CHAT, {"model": name})
            assert (reply.status, reply.body) == (200, b"{}")
            assert "x-second" not in reply.headers
    assert engine.connections == 3


def test_a_bad_chunk_in_the_middle_ends_the_reply_without_an_end(rig: Rig) -> None:
    begun = threading.Event()

    def script(connection: Connection, request: Request) -> None:
        connection.start_stream()
        connection.chunk(b"data: {}\n\n")
        begun.wait(10)
        connection.send(b"nonsense\r\n")

    name = rig.serve(script)
    with Client(rig.port) as client:
        client.send(request(CHAT, {"model": name, "stream": True}))
        client.read_until(b"data: {}\n\n")
        begun.set()
        rest = client.read_rest()
        assert b"upstream_broken" in rest
        assert not rest.endswith(b"0\r\n\r\n")
        assert client.is_closed()


def test_a_folded_header_adds_no_line(rig: Rig) -> None:
    name = rig.serve(sends(OK + b"X-A: 1\r\n X-B: 2\r\nContent-Length: 2\r\n\r\n{}"))
    assert "x-b" not in ask(rig.port, CHAT, {"model": name}).headers


def test_the_engine_cannot_set_the_gateways_own_headers(rig: Rig) -> None:
    name = rig.serve(lambda connection, request: connection.reply(200, b"{}", "x-llmgw-arm: canary"))
    assert ask(rig.port, CHAT, {"model": name}).headers["x-llmgw-arm"] == "stable"


def test_an_engine_that_comes_back_is_used_again(rig: Rig) -> None:
    moods = iter([sends(b"", close=True), says()])
    name = rig.serve(lambda connection, request: next(moods)(connection, request))
    assert [ask(rig.port, CHAT, {"model": name}).status for _ in range(2)] == [502, 200]
