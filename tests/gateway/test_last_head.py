"""A reply whose head differs from the last one's in nothing but date and length is known; any other is parsed."""

import asyncio

import pytest

from llmgwd.gateway.last_head import LastHead
from llmgwd.gateway.reply_heads import ReplyHead
from llmgwd.gateway.upstream import Pool, UpstreamConnection
from tests.gateway.test_splits import Wire

DATE = b"Mon, 30 Nov 2026 22:40:00 GMT"
LATER = b"Tue, 01 Dec 2026 00:00:01 GMT"
TYPE = b"Content-Type: application/json\r\n"


def reply(lines: bytes, body: bytes = b"{}", status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\n%b\r\n%b" % (status, lines.replace(b"LENGTH", b"%d" % len(body)), body)


def learnt(data: bytes, status: int = 200) -> LastHead[ReplyHead]:
    """What is remembered of a reply, its headers told apart as the HTTP parser does."""
    last: LastHead[ReplyHead] = LastHead()
    lines = data.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    pairs = [line.partition(b": ") for line in lines]
    last.learn(data, ReplyHead(status, [(name, value) for name, _, value in pairs]))
    return last


UVICORN = b"date: " + DATE + b"\r\nserver: uvicorn\r\ncontent-length: LENGTH\r\n" + TYPE
NGINX = (
    b"Server: nginx\r\nDate: " + DATE + b"\r\n" + TYPE + b"Content-Length: LENGTH\r\nConnection: keep-alive, x-hop\r\n"
)
LENGTH_FIRST = b"Content-Length: LENGTH\r\nDate: " + DATE + b"\r\n" + TYPE + b"X-Mine: 1\r\n"
UNDATED = TYPE + b"Content-Length: LENGTH\r\n"


@pytest.mark.parametrize("lines", [UVICORN, NGINX, LENGTH_FIRST, UNDATED], ids=["uvicorn", "nginx", "first", "undated"])
@pytest.mark.parametrize("body", [b"", b"x", b'{"a": 1}' * 200])
def test_the_same_head_with_another_date_and_length_is_known(lines: bytes, body: bytes) -> None:
    last = learnt(reply(lines))
    again = last.known(reply(lines.replace(DATE, LATER), body))
    assert again is not None
    head, date_line, found = again
    assert (head.status, head.content_type, found) == (200, b"application/json", body)
    assert date_line == (b"Date: %b\r\n" % LATER if DATE in lines else b"")
    assert b"x-hop" not in head.lines and b"date" not in head.lines.lower() and b"length" not in head.lines.lower()


@pytest.mark.parametrize(
    "other",
    [
        reply(NGINX)[:-1],
        reply(NGINX) + b"x",
        reply(NGINX, status=b"500 Internal Server Error"),
        reply(NGINX.replace(b"nginx", b"nginy")),
        reply(NGINX + b"X-More: 1\r\n"),
        reply(NGINX + b"Content-Length: 2\r\n"),
        reply(NGINX + b"Transfer-Encoding: chunked\r\n"),
        reply(NGINX.replace(DATE, b"Mon, 30 Nov 2026 22:40:00 G\rT")),
        reply(NGINX.replace(DATE, b"Mon, 30 Nov 2026 22:40:00 GM\n")),
        reply(NGINX.replace(b"LENGTH", b"+2")),
        reply(NGINX.replace(b"LENGTH", b"0x2")),
        reply(NGINX.replace(b"LENGTH", b" 2")),
        reply(NGINX.replace(b"LENGTH", "\u0662".encode())),
        reply(NGINX.replace(b"LENGTH", b"")),
        reply(NGINX).replace(b"HTTP/1.1", b"HTTP/1.0"),
        b"",
        b"HTTP/1.1 200 OK",
    ],
)
def test_any_other_is_not(other: bytes) -> None:
    assert learnt(reply(NGINX)).known(other) is None


@pytest.mark.parametrize(
    "data", [reply(NGINX)[:-1], reply(NGINX) + b"x", reply(TYPE)], ids=["cut", "followed", "no length"]
)
def test_what_is_not_one_whole_message_is_not_learnt(data: bytes) -> None:
    assert learnt(data).known(data) is None


class Taker:
    """Takes replies, and remembers how they ended."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def reply_came(self, connection: UpstreamConnection, data: bytes, complete: bool) -> None:
        assert connection.head is not None
        self.told.append(f"{connection.head.status} {data.decode()} {complete}")

    def reply_lost(self, connection: UpstreamConnection, why: str, reset: bool) -> None:
        self.told.append("lost")


HINTS = b"HTTP/1.1 103 Early Hints\r\nContent-Length: %d\r\n\r\n%b"


@pytest.mark.parametrize(
    ("data", "told", "is_learnt"),
    [
        (reply(NGINX), "200 {} True", True),
        (reply(NGINX, b"", b"304 Not Modified"), "304  True", False),
        (HINTS % (len(reply(NGINX)), reply(NGINX)), "200 {} True", False),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" + reply(NGINX), "200 {} True", False),
        (reply(NGINX.replace(b"keep-alive", b"close")), "200 {} True", False),
        (reply(NGINX) + b"x", "200 {} True", False),
    ],
    ids=["plain", "without a body", "hints with a length", "hints", "closing", "followed"],
)
def test_a_connection_learns_from_whole_replies_that_leave_it_clean(data: bytes, told: str, is_learnt: bool) -> None:
    loop = asyncio.new_event_loop()
    pool = Pool("127.0.0.1", 1, 4, loop)
    connection = UpstreamConnection(pool)
    connection.connection_made(Wire())
    taker = Taker()
    connection.send(b"GET / HTTP/1.1\r\n\r\n", b"", taker, head_request=False)
    connection.data_received(data)
    assert taker.told == [told]
    assert (pool.last_head.known(data) is not None) == is_learnt
    loop.close()


def test_an_engine_whose_heads_always_differ_is_studied_a_hundred_times_and_no_more() -> None:
    last: LastHead[ReplyHead] = LastHead()
    for number in range(101):
        data = reply(UNDATED + b"X-Request-Id: %d\r\n" % number)
        last.learn(data, ReplyHead(200, [(b"Content-Length", b"2")]))
        assert (last.known(data) is not None) == (number < 100)
