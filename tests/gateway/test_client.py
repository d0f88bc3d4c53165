"""A client's connection against a wire and a clock of the test's own: what is held, and how long anything may take."""

import asyncio
from hashlib import sha256
from itertools import pairwise
from typing import cast

import pytest

from llmgwd.gateway.client import ClientConnection
from llmgwd.gateway.settings import Settings
from llmgwd.gateway.state import Gateway
from llmgwd.gateway.upstream import UpstreamConnection
from llmgwd.protocol.link import ArmRoute, ModelRoute, ReplicaRoute, Routes
from llmgwd.protocol.samples import Outcome
from tests.gateway.answers import answer
from tests.gateway.client import request
from tests.gateway.test_splits import Wire, document

HEALTH = request("/health")
CHAT = request("/v1/chat/completions", {"model": "chat"})
REPLY = document(answer("hello"))
IDLE_S = Settings("").idle_timeout_s
AHEAD = Settings("").ahead_bytes


class Clock:
    """The part of a loop that tells the time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now


class Line(Wire):
    """A wire to a client that can be slow: what it has not read yet is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = 0
        self.is_cut = False
        self.reads = True
        self.has_ended = False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def write_eof(self) -> None:
        self.has_ended = True

    def abort(self) -> None:
        self.is_cut = True


class Bench:
    """One client, and a model with one engine."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.gateway = Gateway(Settings("w"), cast(asyncio.AbstractEventLoop, self.clock))
        self.route = ReplicaRoute("r", "127.0.0.1", 1, "chat", False)
        self.publish(1)
        assert self.gateway.table is not None
        (replica,) = self.gateway.table.replicas
        self.engine = Line()
        upstream = UpstreamConnection(replica.pool)
        self.engine.set_protocol(upstream)
        upstream.connection_made(self.engine)
        replica.pool.put(upstream)
        self.wire = Line()
        self.client = ClientConnection(self.gateway)
        self.client.connection_made(self.wire)

    def publish(self, version: int, keys: tuple[bytes, ...] | None = None) -> None:
        self.gateway.apply(Routes(version, (ModelRoute("chat", ArmRoute("abc", (self.route,))),), keys))

    def reply(self, data: bytes = REPLY) -> None:
        self.engine.protocol.data_received(data)

    def later(self, seconds: float) -> None:
        """Time passes, and deadlines are looked at."""
        self.clock.now += seconds
        self.client.check(self.clock.now)

    @property
    def statuses(self) -> list[int]:
        return [int(each[:3]) for each in self.wire.written.split(b"HTTP/1.1 ")[1:]]


@pytest.fixture
def bench() -> Bench:
    return Bench()


# what is held


def test_requests_of_a_client_that_does_not_read_stay_in_the_kernel(bench: Bench) -> None:
    bench.client.data_received(HEALTH)
    bench.client.pause_writing()
    bench.client.data_received(HEALTH * 3)
    assert not bench.wire.reads
    assert bench.statuses == [200]
    bench.client.resume_writing()
    assert bench.wire.reads
    assert bench.statuses == [200] * 4


def test_reading_goes_on_behind_a_running_request_and_holds_no_more_than_allowed(bench: Bench) -> None:
    bench.client.data_received(CHAT)
    for _ in range(1000):
        bench.client.data_received(b"x" * 65536)
    assert bench.wire.reads
    assert len(bench.client._buffer) <= AHEAD + 65536
    bench.client.eof_received()
    assert bench.wire.is_cut
    (sample,) = bench.gateway.ledger.take()
    assert sample.outcomes == {Outcome.CANCELLED: 1}


def test_too_much_sent_ahead_is_refused_after_the_running_reply(bench: Bench) -> None:
    bench.client.data_received(CHAT)
    for _ in range(3):
        bench.client.data_received(HEALTH * 1000 + b"x" * AHEAD)
    assert bench.statuses == []
    bench.reply()
    assert bench.statuses == [200, 413]
    assert b"too_much_ahead" in bench.wire.written
    assert bench.wire.has_ended
    (sample,) = bench.gateway.ledger.take()
    assert sample.outcomes == {Outcome.OK: 1}


def test_what_may_be_sent_ahead_is_served(bench: Bench) -> None:
    count = AHEAD // len(HEALTH)
    bench.client.data_received(CHAT + HEALTH * count)
    bench.reply()
    assert bench.statuses == [200] * (count + 1)


# how long it may take


def big_reply(bench: Bench, *headers: str) -> None:
    """A reply of which the client has read nothing yet."""
    bench.client.data_received(request("/v1/chat/completions", {"model": "chat"}, *headers))
    bench.wire.unread = 8_000_000
    bench.client.pause_writing()
    bench.reply()


@pytest.mark.parametrize("headers", [(), ("Connection: close",)], ids=["kept", "closing"])
def test_a_reader_however_slow_is_not_cut_while_it_reads(bench: Bench, headers: tuple[str, ...]) -> None:
    big_reply(bench, *headers)
    while bench.wire.unread > 1_000_000:
        bench.wire.unread -= 1_000_000
        bench.later(IDLE_S)
        assert not bench.wire.is_cut


@pytest.mark.parametrize("headers", [(), ("Connection: close",)], ids=["kept", "closing"])
def test_a_reader_that_stopped_is_cut(bench: Bench, headers: tuple[str, ...]) -> None:
    big_reply(bench, *headers)
    bench.later(IDLE_S)
    assert not bench.wire.is_cut
    bench.wire.unread -= 1
    bench.later(IDLE_S)
    assert not bench.wire.is_cut
    bench.later(IDLE_S)
    assert bench.wire.is_cut


def test_a_client_that_asks_on_while_it_does_not_read_is_cut_without_another_answer(bench: Bench) -> None:
    big_reply(bench)
    bench.client.data_received(HEALTH)
    bench.later(IDLE_S)
    bench.later(IDLE_S)
    assert bench.wire.is_cut
    assert bench.statuses == [200]


def test_idleness_begins_when_the_reply_is_read(bench: Bench) -> None:
    big_reply(bench)
    bench.later(IDLE_S - 1)
    bench.wire.unread = 0
    bench.client.resume_writing()
    bench.later(IDLE_S - 1)
    assert not bench.wire.is_cut
    bench.later(1)
    assert bench.wire.is_cut


def test_the_second_reply_has_as_long_as_the_first(bench: Bench) -> None:
    big_reply(bench)
    bench.wire.unread = 1_000
    bench.later(IDLE_S)
    bench.wire.unread = 0
    bench.client.resume_writing()
    big_reply(bench)
    bench.later(IDLE_S)
    assert not bench.wire.is_cut


def test_a_refused_client_that_does_not_read_is_cut(bench: Bench) -> None:
    bench.client.data_received(b"nonsense\r\n\r\n")
    assert (bench.statuses, bench.wire.has_ended) == ([400], True)
    bench.later(2)
    assert bench.wire.is_cut


def test_a_body_that_follows_a_slow_reading_has_its_own_deadline(bench: Bench) -> None:
    big_reply(bench)
    bench.client.data_received(CHAT[:-1])
    bench.wire.unread = 0
    bench.client.resume_writing()
    bench.later(Settings("").body_timeout_s)
    assert bench.statuses == [200, 408]


# heads


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (HEALTH, [200]),
        (b"\r\n" + HEALTH, [200]),
        (HEALTH + b"\r\n" + HEALTH + b"\r\n", [200, 200]),
        (b"\r\n\r\n" + HEALTH, [400]),
        (b"\r\n\r\n\r\n" + HEALTH, [400]),
        (HEALTH + b"\r\n\r\n" + HEALTH, [200, 400]),
        (b"\n" + HEALTH, [400]),
        (b"\r" + HEALTH, [400]),
        (HEALTH[:-4] + b"\nX: 1\r\n\r\n", [400]),
        (HEALTH[:-2] + b"X: \r1\r\n\r\n", [400]),
        (HEALTH[:-2] + b"X: \r\r\n\r\n", [400]),
        (HEALTH[:-2] + b"X: " + b"x" * 66_000 + b"\r\n\r\n", [431]),
    ],
    ids=["one", "empty line", "between", "two", "three", "two between", "LF", "CR", "LF in", "CR in", "CR CR", "big"],
)
def test_a_head_is_the_same_in_whatever_pieces_it_comes(
    bench: Bench, sent: bytes, statuses: list[int], size: int
) -> None:
    for at in range(0, len(sent), size):
        bench.client.data_received(sent[at : at + size])
    assert bench.statuses == statuses


def test_an_empty_line_makes_no_head_of_an_idle_connection(bench: Bench) -> None:
    bench.client.data_received(HEALTH + b"\r\n")
    bench.later(Settings("").head_timeout_s)
    assert not bench.wire.is_cut
    bench.later(IDLE_S)
    assert bench.wire.is_cut
    assert bench.statuses == [200]


@pytest.mark.parametrize("comes", ["before", "with the request"])
def test_an_empty_line_does_not_keep_a_connection_while_finishing(bench: Bench, comes: str) -> None:
    if comes == "before":
        bench.client.data_received(HEALTH + b"\r\n")
        bench.gateway.finish()
    else:
        bench.client.data_received(CHAT + b"\r\n")
        bench.gateway.finish()
        assert not bench.wire.is_closed
        bench.reply()
    assert bench.wire.is_closed


def test_a_head_in_many_pieces_is_searched_once(bench: Bench) -> None:
    bench.client.data_received(HEALTH[:-2] + b"X: " + b"x" * 50_000)
    searched = [bench.client._searched]
    for _ in range(100):
        bench.client.data_received(b"x" * 10)
        searched.append(bench.client._searched)
    assert searched[0] > 50_000
    assert [b - a for a, b in pairwise(searched)] == [10] * 100
    bench.client.data_received(b"\r\n\r\n")
    assert bench.statuses == [200]


# keys


KEY = sha256(b"k").digest()
OTHER = sha256(b"o").digest()
SIGNED = request("/v1/chat/completions", {"model": "chat"}, "Authorization: Bearer k")


def test_a_key_revoked_while_the_body_comes_opens_nothing(bench: Bench) -> None:
    bench.publish(2, keys=(KEY,))
    bench.client.data_received(SIGNED[:-1])
    bench.publish(3, keys=(OTHER,))
    bench.client.data_received(SIGNED[-1:])
    assert bench.statuses == [401]
    assert bench.engine.written == b""


def test_a_key_that_stays_opens_after_another_table_came(bench: Bench) -> None:
    bench.publish(2, keys=(KEY,))
    bench.client.data_received(SIGNED[:-1])
    bench.publish(3, keys=(KEY, OTHER))
    bench.client.data_received(SIGNED[-1:])
    bench.reply()
    assert bench.statuses == [200]


@pytest.mark.parametrize("between", [b"", request("/health", None, "Authorization: Bearer k")], ids=["body", "known"])
def test_a_key_that_became_the_gateways_own_is_not_passed_on(bench: Bench, between: bytes) -> None:
    if between:
        bench.client.data_received(SIGNED)
        bench.reply()
        assert b"Authorization" in bench.engine.written
        bench.engine.written = b""
        bench.publish(2, keys=(KEY,))
        bench.client.data_received(between)
        bench.client.data_received(SIGNED)
    else:
        bench.client.data_received(SIGNED[:-1])
        bench.publish(2, keys=(KEY,))
        bench.client.data_received(SIGNED[-1:])
    assert b"POST" in bench.engine.written
    assert b"Authorization" not in bench.engine.written


# refusals


def head_request(*headers: str) -> bytes:
    return request("/v1/models", None, *headers, method="HEAD")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (head_request(), 401),
        (head_request("Content-Length: 0"), 401),
        (head_request("Authorization: Bearer k", "Content-Length: 99999999"), 413),
        (head_request("Authorization: Bearer k", "Content-Length: 5"), 408),
        (head_request("Expect: magic"), 417),
        (b"\r\n" + head_request("Content-Type: a", "Content-Type: b"), 400),
        (head_request()[:-2], 408),
    ],
    ids=["no key", "no key, a length", "too large", "slow body", "expectation", "bad head", "slow head"],
)
def test_a_refusal_of_head_has_no_body(bench: Bench, sent: bytes, status: int) -> None:
    bench.publish(2, keys=(KEY,))
    bench.client.data_received(sent)
    bench.later(100)
    assert bench.statuses == [status]
    assert bench.wire.written.endswith(b"Connection: close\r\n\r\n")
    assert b"Content-Length: " in bench.wire.written


def test_a_known_head_whose_key_was_revoked_is_refused_without_a_body(bench: Bench) -> None:
    known = head_request("Authorization: Bearer k", "Content-Length: 0")
    bench.publish(2, keys=(KEY,))
    bench.client.data_received(known)
    bench.publish(3, keys=(OTHER,))
    bench.client.data_received(known)
    assert bench.statuses == [200, 401]
    assert bench.wire.written.endswith(b"\r\n\r\n")


# the end


def test_who_has_just_connected_is_still_answered_while_finishing(bench: Bench) -> None:
    bench.gateway.finish()
    bench.later(0.9)
    bench.client.data_received(HEALTH)
    assert bench.statuses == [200]
    assert b"Connection: close" in bench.wire.written
    assert bench.wire.is_closed


def test_who_has_connected_and_does_not_ask_is_let_go_while_finishing(bench: Bench) -> None:
    bench.gateway.finish()
    bench.later(1)
    assert bench.wire.is_cut
