"""A reply whose head differs from the last one's in nothing but date and length is known; any other is parsed."""

import pytest

from llmgwd.gateway.reply_heads import LastHead, ReplyHead

DATE = b"Mon, 30 Nov 2026 22:40:00 GMT"
LATER = b"Tue, 01 Dec 2026 00:00:01 GMT"
TYPE = b"Content-Type: application/json\r\n"


def reply(lines: bytes, body: bytes = b"{}", status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\n%b\r\n%b" % (status, lines.replace(b"LENGTH", b"%d" % len(body)), body)


def learnt(data: bytes, status: int = 200) -> LastHead:
    """What is remembered of a reply, its headers told apart as the HTTP parser does."""
    last = LastHead()
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
    ("data", "status"),
    [
        (reply(NGINX)[:-1], 200),
        (reply(NGINX) + b"x", 200),
        (reply(TYPE), 200),
        (reply(b"Content-Length: LENGTH\r\n", b"", b"304 Not Modified"), 304),
        (b"HTTP/1.1 103 Early Hints\r\nContent-Length: %d\r\n\r\n%b" % (len(reply(NGINX)), reply(NGINX)), 200),
    ],
    ids=["cut", "followed", "no length", "no body", "interim"],
)
def test_what_is_not_one_whole_reply_is_not_learnt(data: bytes, status: int) -> None:
    assert learnt(data, status).known(data) is None


def test_an_engine_whose_heads_always_differ_is_studied_a_hundred_times_and_no_more() -> None:
    last = LastHead()
    for number in range(101):
        data = reply(UNDATED + b"X-Request-Id: %d\r\n" % number)
        last.learn(data, ReplyHead(200, [(b"Content-Length", b"2")]))
        assert (last.known(data) is not None) == (number < 100)
