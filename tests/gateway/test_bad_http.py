"""What is not plain HTTP is answered, closed, and never seen by an engine (G9)."""

import json

import pytest

from tests.gateway.answers import says
from tests.gateway.client import Client, request
from tests.gateway.conftest import Rig
from tests.gateway.upstream import Upstream

CHAT = b"/v1/chat/completions"
HOST = b"Host: x\r\n"


def post(headers: bytes, body: bytes = b"", target: bytes = CHAT) -> bytes:
    return b"POST " + target + b" HTTP/1.1\r\n" + headers + b"\r\n" + body


BODY = b'{"model":"MODEL"}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"

BAD: dict[str, tuple[bytes, int]] = {
    "both lengths": (post(HOST + LENGTH + CHUNKED, CHUNKS), 400),
    "both lengths, other order": (post(HOST + CHUNKED + LENGTH, CHUNKS), 400),
    "two lengths": (post(HOST + LENGTH + b"Content-Length: 5\r\n", BODY), 400),
    "the same length twice": (post(HOST + LENGTH + LENGTH, BODY), 400),
    "a list of lengths": (post(HOST + b"Content-Length: 9, 9\r\n", BODY), 400),
    "a signed length": (post(HOST + b"Content-Length: +9\r\n", BODY), 400),
    "a negative length": (post(HOST + b"Content-Length: -1\r\n", BODY), 400),
    "a hexadecimal length": (post(HOST + b"Content-Length: 0x9\r\n", BODY), 400),
    "an empty length": (post(HOST + b"Content-Length: \r\n", BODY), 400),
    "an enormous length": (post(HOST + b"Content-Length: 99999999999999999999\r\n", BODY), 400),
    "an unknown coding": (post(HOST + b"Transfer-Encoding: gzip\r\n", BODY), 400),
    "two codings": (post(HOST + b"Transfer-Encoding: gzip, chunked\r\n", CHUNKS), 400),
    "chunked twice": (post(HOST + CHUNKED + CHUNKED, CHUNKS), 400),
    "chunked in a list": (post(HOST + b"Transfer-Encoding: chunked, identity\r\n", CHUNKS), 400),
    "chunked with a tab inside": (post(HOST + b"Transfer-Encoding: \x0bchunked\r\n", CHUNKS), 400),
    "chunked in HTTP/1.0": (post(HOST + CHUNKED, CHUNKS).replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
    "a folded line": (post(HOST + b"X-A: 1\r\n 2\r\n" + LENGTH, BODY), 400),
    "a folded first line": (post(b" X: 1\r\n" + HOST + LENGTH, BODY), 400),
    "a bare LF in the head": (post(HOST + b"X-A: 1\nX-B: 2\r\n" + LENGTH, BODY), 400),
    "only bare LFs": (post(HOST + LENGTH, BODY).replace(b"\r\n", b"\n"), 400),
    "a bare CR in a value": (post(HOST + b"X-A: 1\r2\r\n" + LENGTH, BODY), 400),
    "a NUL in a value": (post(HOST + b"X-A: 1\x002\r\n" + LENGTH, BODY), 400),
    "a NUL in a name": (post(HOST + b"X\x00A: 1\r\n" + LENGTH, BODY), 400),
    "a space before the colon": (post(HOST + b"Content-Length : 9\r\n", BODY), 400),
    "a tab before the colon": (post(HOST + b"Transfer-Encoding\t: chunked\r\n", CHUNKS), 400),
    "no colon": (post(HOST + b"Content-Length 9\r\n", BODY), 400),
    "an empty name": (post(HOST + b": 9\r\n", BODY), 400),
    "a control character": (post(HOST + b"X-A: \x01\r\n" + LENGTH, BODY), 400),
    "no host": (post(LENGTH, BODY), 400),
    "two hosts": (post(HOST + HOST + LENGTH, BODY), 400),
    "absolute form": (post(HOST + LENGTH, BODY, b"http://x" + CHAT), 400),
    "authority form": (b"CONNECT x:80 HTTP/1.1\r\n" + HOST + b"\r\n", 405),
    "a fragment": (post(HOST + LENGTH, BODY, CHAT + b"#x"), 400),
    "a space in the target": (post(HOST + LENGTH, BODY, CHAT + b" x"), 400),
    "two spaces": (post(HOST + LENGTH, BODY, b" " + CHAT), 400),
    "no version": (b"POST " + CHAT + b"\r\n" + HOST + b"\r\n", 400),
    "HTTP/0.9": (b"GET /health HTTP/0.9\r\n\r\n", 505),
    "HTTP/1.2": (b"GET /health HTTP/1.2\r\n" + HOST + b"\r\n", 505),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "a lower-case method": (post(HOST + LENGTH, BODY).replace(b"POST", b"post"), 405),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "an unknown expectation": (post(HOST + LENGTH + b"Expect: magic\r\n", BODY), 417),
    "a size that is no number": (post(HOST + CHUNKED, b"zz\r\n" + BODY), 400),
    "a signed size": (post(HOST + CHUNKED, b"+9\r\n" + BODY), 400),
    "a size with 0x": (post(HOST + CHUNKED, b"0x9\r\n" + BODY), 400),
    "a size with a space before": (post(HOST + CHUNKED, b" 9\r\n" + BODY), 400),
    "a size that ends in LF": (post(HOST + CHUNKED, b"11\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    "a chunk that ends in LF": (post(HOST + CHUNKED, CHUNKS.replace(BODY + b"\r\n", BODY + b"\n")), 400),
    "a chunk longer than said": (post(HOST + CHUNKED, b"3\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    "an endless size line": (post(HOST + CHUNKED, b"1;" + b"x" * 5000), 400),
    "a folded trailer": (post(HOST + CHUNKED, CHUNKS[:-2] + b"X: 1\r\n 2\r\n\r\n"), 400),
    "a big length": (post(HOST + b"Content-Length: 1048577\r\n"), 413),
    "a big chunk": (post(HOST + CHUNKED, b"100001\r\n"), 413),
    "a big head": (post(HOST + b"X: " + b"x" * 66000 + b"\r\n"), 431),
    "an endless head": (b"GET /health HTTP/1.1\r\nX: " + b"x" * 70000, 431),
    "an endless request line": (b"GET /" + b"x" * 70000, 431),
    # lengths
    "two lengths, other case": (post(HOST + LENGTH + LENGTH.upper().replace(b"17", b"5"), BODY), 400),
    "a list of different lengths": (post(HOST + b"Content-Length: 17, 5\r\n", BODY), 400),
    "a length with a suffix": (post(HOST + b"Content-Length: 17a\r\n", BODY), 400),
    "two numbers for a length": (post(HOST + b"Content-Length: 17 5\r\n", BODY), 400),
    "a decimal fraction": (post(HOST + b"Content-Length: 17.0\r\n", BODY), 400),
    "a length in other digits": (post(HOST + b"Content-Length: \xd9\xa1\xd9\xa7\r\n", BODY), 400),
    "a length and a tabbed one": (post(HOST + LENGTH + b"Content-Length:\t5\r\n", BODY), 400),
    "a length over two lines": (post(HOST + b"Content-Length:\r\n 17\r\n", BODY), 400),
    "no length, then chunks of none": (post(HOST + b"Content-Length: 0\r\n" + CHUNKED, CHUNKS), 400),
    # codings
    "identity": (post(HOST + b"Transfer-Encoding: identity\r\n", BODY), 400),
    "identity, then chunked": (post(HOST + b"Transfer-Encoding: identity\r\n" + CHUNKED, CHUNKS), 400),
    "chunked with a parameter": (post(HOST + b"Transfer-Encoding: chunked;q=1\r\n", CHUNKS), 400),
    "chunked, chunked": (post(HOST + b"Transfer-Encoding: chunked, chunked\r\n", CHUNKS), 400),
    "a comma and chunked": (post(HOST + b"Transfer-Encoding: ,chunked\r\n", CHUNKS), 400),
    "chunked in quotes": (post(HOST + b'Transfer-Encoding: "chunked"\r\n', CHUNKS), 400),
    "an empty coding": (post(HOST + b"Transfer-Encoding:\r\n", CHUNKS), 400),
    "a folded coding": (post(HOST + b"Transfer-Encoding:\r\n chunked\r\n", CHUNKS), 400),
    "a coding with a NUL": (post(HOST + b"Transfer-Encoding: chunked\x00\r\n", CHUNKS), 400),
    "a coding with a soft hyphen": (post(HOST + b"Transfer-Encoding: chun\xadked\r\n", CHUNKS), 400),
    "xchunked": (post(HOST + b"Transfer-Encoding: xchunked\r\n", CHUNKS), 400),
    # header lines
    "a name with a NUL at its end": (post(HOST + b"Content-Length\x00: 5\r\n" + LENGTH, BODY), 400),
    "a name with a no-break space": (post(HOST + b"Content-Length\xa0: 5\r\n" + LENGTH, BODY), 400),
    "a name in two words": (post(HOST + b"Content Length: 5\r\n" + LENGTH, BODY), 400),
    "a name in brackets": (post(HOST + b"X(A): 5\r\n" + LENGTH, BODY), 400),
    "a vertical tab": (post(HOST + b"X-A: \x0b5\r\n" + LENGTH, BODY), 400),
    "a delete character": (post(HOST + b"X-A: \x7f\r\n" + LENGTH, BODY), 400),
    "a CR at the end of a value": (post(HOST + b"X-A: 1\r\r\n" + LENGTH, BODY), 400),
    "LF CR": (post(HOST + b"X-A: 1\n\rX-B: 2\r\n" + LENGTH, BODY), 400),
    "a head that ends in LF LF": (b"POST " + CHAT + b" HTTP/1.1\r\n" + HOST + LENGTH + b"\n\n" + BODY, 400),
    "two authorizations": (post(HOST + b"Authorization: a\r\nAuthorization: b\r\n" + LENGTH, BODY), 400),
    "two empty authorizations": (post(HOST + b"Authorization:\r\nAuthorization: b\r\n" + LENGTH, BODY), 400),
    "two content types": (post(HOST + b"Content-Type: text/a\r\nContent-Type: text/b\r\n" + LENGTH, BODY), 400),
    "two arms": (post(HOST + b"x-llmgw-arm: stable\r\nX-LLMGW-Arm: canary\r\n" + LENGTH, BODY), 400),
    "two sessions": (post(HOST + b"x-llmgw-session: a\r\nx-llmgw-session: a\r\n" + LENGTH, BODY), 400),
    "the same expectation twice": (post(HOST + b"Expect: 100-continue\r\n" * 2 + LENGTH, BODY), 400),
    "two expectations": (post(HOST + b"Expect: 100-continue, x\r\n" + LENGTH, BODY), 417),
    # request lines
    "a tab in the request line": (post(HOST + LENGTH, BODY).replace(b" HTTP", b"\tHTTP"), 400),
    "a space before the method": (b" " + post(HOST + LENGTH, BODY), 400),
    "a space at the end of the request line": (post(HOST + LENGTH, BODY).replace(b"HTTP/1.1", b"HTTP/1.1 "), 400),
    "a lower-case protocol": (post(HOST + LENGTH, BODY).replace(b"HTTP", b"http"), 400),
    "a version of two digits": (post(HOST + LENGTH, BODY).replace(b"1.1", b"1.11"), 400),
    "an empty target": (post(HOST + LENGTH, BODY, b""), 400),
    "no slash": (post(HOST + LENGTH, BODY, CHAT[1:]), 400),
    "authority form of another method": (post(HOST + LENGTH, BODY, b"x:80"), 400),
    "a NUL in the target": (post(HOST + LENGTH, BODY, CHAT + b"\x00"), 400),
    "a CR in the target": (post(HOST + LENGTH, BODY, CHAT + b"\rX-A: 1"), 400),
    "an LF in the target": (post(HOST + LENGTH, BODY, CHAT + b"\nX-A: 1"), 400),
    "bytes beyond ASCII in the target": (post(HOST + LENGTH, BODY, CHAT + b"\xc3\xa9"), 400),
    "TRACE": (post(HOST + LENGTH, BODY).replace(b"POST", b"TRACE"), 405),
    "an unknown method": (post(HOST + LENGTH, BODY).replace(b"POST", b"BREW"), 405),
    "two empty lines before": (b"\r\n\r\n" + post(HOST + LENGTH, BODY), 400),
    # chunks
    "a size with a space behind": (post(HOST + CHUNKED, b"11 \r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    "a size with an underscore": (post(HOST + CHUNKED, b"1_1\r\n" + BODY), 400),
    "a size of sixteen digits": (post(HOST + CHUNKED, b"ffffffffffffffff\r\n" + BODY), 400),
    "a size that overflows to a small one": (post(HOST + CHUNKED, b"10000000000000011\r\n" + BODY), 400),
    "no size": (post(HOST + CHUNKED, b"\r\n" + BODY), 400),
    "a negative size": (post(HOST + CHUNKED, b"-11\r\n" + BODY), 400),
    "an extension with a CR": (post(HOST + CHUNKED, b"11;a\rb\r\n" + BODY), 400),
    "an extension with a NUL": (post(HOST + CHUNKED, b"11;\x00\r\n" + BODY), 400),
    "an end in LF": (post(HOST + CHUNKED, CHUNKS.replace(b"0\r\n\r\n", b"0\n\n")), 400),
    "a trailer without a colon": (post(HOST + CHUNKED, CHUNKS[:-2] + b"oops\r\n\r\n"), 400),
    "a trailer that ends in LF": (post(HOST + CHUNKED, CHUNKS[:-2] + b"X: 1\n\r\n"), 400),
    "an endless trailer": (post(HOST + CHUNKED, CHUNKS[:-2] + b"X: %b\r\n" % (b"x" * 4000) * 9), 400),
    "more extensions than body": (post(HOST + CHUNKED, (b"1;" + b"x" * 4000 + b"\r\nx\r\n") * 300), 413),
}


@pytest.fixture
def engine(rig: Rig) -> Upstream:
    engine = rig.upstream(says())
    engine.name = rig.serve(engine)  # type: ignore[attr-defined]
    return engine


@pytest.mark.parametrize("case", BAD)
def test_bad_http_is_answered_closed_and_not_forwarded(rig: Rig, engine: Upstream, case: str) -> None:
    sent, status = BAD[case]
    sent = sent.replace(b"MODEL", engine.name.encode())  # type: ignore[attr-defined]
    smuggled = request("/v1/chat/completions", {"model": engine.name, "smuggled": True})  # type: ignore[attr-defined]
    with Client(rig.port) as client:
        client.send(sent + smuggled)
        reply = client.read()
        assert (reply.status, reply.headers["connection"]) == (status, "close")
        assert reply.code
        assert client.is_closed()
    assert (engine.connections, engine.requests) == (0, [])


def test_the_corpus_is_as_large_as_it_should_be() -> None:
    assert len(BAD) >= 60


def test_a_slow_head_is_timed_out(rig: Rig) -> None:
    with Client(rig.port) as client:
        client.send(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        reply = client.read()
        assert (reply.status, reply.code) == (408, "request_timeout")
        assert client.is_closed()


def test_dripping_bytes_do_not_put_the_timeout_off(rig: Rig) -> None:
    with Client(rig.port) as client:
        client.socket.settimeout(0.1)
        client.send(b"GET /health HTTP/1.1\r\n")
        for _ in range(50):
            try:
                client.send(b"X: y\r\n")
                assert client._more()
                break
            except TimeoutError:
                continue
        client.socket.settimeout(10)
        assert client.read().status == 408


def test_a_refused_body_leaves_the_answer_readable(rig: Rig, engine: Upstream) -> None:
    with Client(rig.port) as client:
        client.send(b"POST " + CHAT + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n")
        client.send(b"x" * 500_000)
        assert client.read().status == 413


def test_a_body_of_exactly_the_limit_passes(rig: Rig, engine: Upstream) -> None:
    start = json.dumps({"model": engine.name, "text": ""}).encode()  # type: ignore[attr-defined]
    body = start[:-2] + b"x" * (1048576 - len(start)) + start[-2:]
    with Client(rig.port) as client:
        assert client.ask(CHAT.decode(), body).status == 200


def test_one_empty_line_before_a_request_is_overlooked(rig: Rig) -> None:
    with Client(rig.port) as client:
        client.send(b"\r\n" + request("/health"))
        assert client.read().status == 200
