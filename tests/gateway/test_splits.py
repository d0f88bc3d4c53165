"""Whatever pieces a reply arrives in, the client gets the same bytes and the ledger the same entry."""

import asyncio
import json
import re
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgwd.gateway.client import ClientConnection
from llmgwd.gateway.settings import Settings
from llmgwd.gateway.state import Gateway
from llmgwd.gateway.upstream import UpstreamConnection
from llmgwd.protocol.link import ArmRoute, ModelRoute, ReplicaRoute, Routes
from llmgwd.protocol.samples import Outcome
from tests.gateway.answers import DONE, HELLO, ROLE, STOP, WORLD, answer, chunk, event, usage_chunk
from tests.gateway.client import request

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
LOOP = "and so on and so on, "


class Wire(asyncio.Transport):
    """One end of a connection that leads nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False
        self.protocol: Any = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close


def stream(*events: bytes, end: bool = True) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in events) + (b"0\r\n\r\n" if end else b"")


def document(value: Any, *, short_by: int = 0) -> bytes:
    body = json.dumps(value).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    return head + body[: len(body) - short_by]


def text(said: str, finish: str | None = None) -> bytes:
    return event({"model": "engine", "choices": [{"text": said, "index": 0, "finish_reason": finish}]})


def response(said: str) -> dict[str, Any]:
    usage = {"input_tokens": 3, "output_tokens": 9}
    output = [{"type": "message", "content": [{"type": "output_text", "text": said}]}]
    return {"status": "completed", "model": "engine", "output": output, "usage": usage}


def response_events(said: str) -> list[bytes]:
    created = {"type": "response.created", "response": {"model": "engine"}}
    delta = {"type": "response.output_text.delta", "delta": said}
    done = {"type": "response.completed", "response": response(said)}
    return [b"event: %b\n" % each["type"].encode() + event(each) for each in (created, delta, done)]  # type: ignore[attr-defined]


TOOLS = [
    chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"a"'}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": ":"}}]}),
]
JSON_ASKED = {"response_format": {"type": "json_object"}}
REPLIES: dict[str, tuple[str, dict[str, Any], bytes, Outcome]] = {
    "chat": (CHAT, {}, stream(b": ping\n\n", ROLE, HELLO, WORLD, STOP, usage_chunk(3, 9), DONE), Outcome.OK),
    "chat in one chunk": (CHAT, {}, stream(ROLE + HELLO + WORLD + STOP + usage_chunk(3, 9) + DONE), Outcome.OK),
    "chat, CRLF": (CHAT, {}, stream(*(e.replace(b"\n", b"\r\n") for e in (ROLE, HELLO, STOP, DONE))), Outcome.OK),
    "chat, cut": (CHAT, {}, stream(ROLE, HELLO, WORLD, end=False), Outcome.TRUNCATED),
    "chat, no end": (CHAT, {}, stream(ROLE, HELLO, WORLD), Outcome.TRUNCATED),
    "chat, at the limit": (CHAT, {}, stream(ROLE, HELLO, chunk({}, "length"), DONE), Outcome.OK),
    "chat, in circles": (CHAT, {}, stream(ROLE, *[chunk({"content": LOOP})] * 80, STOP, DONE), Outcome.OK),
    "chat, no JSON": (CHAT, JSON_ASKED, stream(ROLE, HELLO, WORLD, STOP, DONE), Outcome.OK),
    "chat, broken call": (CHAT, {}, stream(ROLE, *TOOLS, chunk({}, "tool_calls"), DONE), Outcome.OK),
    "chat, error": (CHAT, {}, stream(ROLE, HELLO, event({"error": {"message": "x"}}), DONE), Outcome.ERROR),
    "chat, empty": (CHAT, {}, stream(ROLE, STOP, DONE), Outcome.EMPTY),
    "completions": (COMPLETIONS, {}, stream(text("a"), text("b \u00e9"), text("", "stop"), DONE), Outcome.OK),
    "completions, circles": (COMPLETIONS, {}, stream(text(LOOP * 80), text("", "length"), DONE), Outcome.OK),
    "responses": (RESPONSES, {}, stream(*response_events("hello")), Outcome.OK),
    "responses, cut": (RESPONSES, {}, stream(*response_events("hello")[:2], end=False), Outcome.TRUNCATED),
    "JSON": (CHAT, {}, document(answer("hello \u00e9")), Outcome.OK),
    "JSON, in circles": (CHAT, {}, document(answer(LOOP * 80)), Outcome.OK),
    "JSON, cut": (CHAT, {}, document(answer("hello"), short_by=9), Outcome.TRUNCATED),
    "JSON of responses": (RESPONSES, {}, document(response("hello")), Outcome.OK),
    "not found": (CHAT, {}, b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}", Outcome.REJECTED),
}  # fmt: skip


def relay(case: str, pieces: list[bytes], *, renames: bool, strips: bool) -> tuple[bytes, dict[str, object]]:
    path, fields, _, _ = REPLIES[case]
    return relay_at(path, fields, pieces, renames=renames, strips=strips)


def relay_at(
    path: str, fields: dict[str, Any], pieces: list[bytes], *, renames: bool, strips: bool
) -> tuple[bytes, dict[str, object]]:
    """What the client got of the body, and what was counted."""
    loop = asyncio.new_event_loop()
    gateway = Gateway(Settings("w"), loop)
    served = "engine" if renames else "chat"
    route = ReplicaRoute("r", "127.0.0.1", 1, served, counts_usage=strips)
    gateway.apply(Routes(1, (ModelRoute("chat", ArmRoute("abc", (route,))),)))
    assert gateway.table is not None
    (replica,) = gateway.table.replicas
    upstream = UpstreamConnection(replica.pool)
    engine = Wire()
    engine.set_protocol(upstream)
    upstream.connection_made(engine)
    replica.pool.put(upstream)
    wire = Wire()
    client = ClientConnection(gateway)
    client.connection_made(wire)
    client.data_received(request(path, {"model": "chat", "stream": True, **fields}))
    for piece in pieces:
        engine.protocol.data_received(piece)
    engine.protocol.connection_lost(None)
    loop.close()
    (sample,) = gateway.ledger.take()
    counted: dict[str, object] = {name: getattr(sample, name) for name in sample.__struct_fields__}
    for times in ("ttft", "duration"):
        counted[times] = sum(getattr(sample, times).values())
    # Tokens that came all at once have no time between them, so this one depends on the pieces.
    del counted["token_time"]
    assert gateway.in_flight() == {"r": 0}
    return _body(wire.written), counted


def _body(written: bytes) -> bytes:
    head, _, rest = written.partition(b"\r\n\r\n")
    if b"Transfer-Encoding: chunked" not in head:
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return body


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({each % len(data) for each in cuts} - {0}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize("case", REPLIES)
@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 20_000), max_size=30), st.booleans(), st.booleans())
def test_any_split_gives_the_same_bytes_and_the_same_entry(
    case: str, cuts: list[int], renames: bool, strips: bool
) -> None:
    data, outcome = REPLIES[case][2:]
    whole = relay(case, [data], renames=renames, strips=strips)
    assert relay(case, cut(data, cuts), renames=renames, strips=strips) == whole
    if renames and case == "JSON, cut":
        # Held back for its name, it had not begun: the client gets a clean failure.
        outcome = Outcome.ERROR
    assert whole[1]["outcomes"] == {outcome: 1}
    assert whole[1]["degenerate"] == (1 if "circles" in case or case in ("chat, no JSON", "chat, broken call") else 0)


@pytest.mark.parametrize("case", REPLIES)
def test_single_bytes_give_the_same(case: str) -> None:
    data = REPLIES[case][2]
    for renames in (False, True):
        whole = relay(case, [data], renames=renames, strips=True)
        assert relay(case, [bytes([each]) for each in data], renames=renames, strips=True) == whole


TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [" token", '"', "\\", "\n", "null", "content", "engine", "chat", "stop", "\u00e9", "\u2028", LOOP * 90]
    ),
)


RAW = st.sampled_from(
    [
        'x"}, "finish_reason": "length", "y": {"z": "',
        'x", "finish_reason": "length", "y": "',
        "\\u0041" * 300,
        "\x01" * 1100,
        'x\n\ndata: {"error": {"message": "x"}}\n\n: ',
        'x\r\rdata: {"error": {"message": "x"}}\r\r: ',
        '"',
        "\\",
        "\n\n",
        "\r",
        "",
    ]
)
"""What no JSON encoder puts into a string as it is: the event ends early, or says more than text."""


def spoken(said: tuple[str, bool], *, ascii_only: bool, completions: bool) -> bytes:
    """A token's event as engines write it: some escape what is not ASCII, some do not; broken ones nothing."""
    text, is_raw = said
    content = "HERE" if is_raw else text
    delta = {"text": content} if completions else {"delta": {"content": content}}
    choice = {"index": 0, "finish_reason": None, **delta}
    value = {"id": "c1", "model": "engine", "choices": [choice]}
    event = json.dumps(value, ensure_ascii=ascii_only).encode()
    return b"data: " + (event.replace(b"HERE", text.encode()) if is_raw else event) + b"\n\n"


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.one_of(st.tuples(TEXTS, st.just(False)), st.tuples(RAW, st.just(True))), max_size=12),
    st.lists(st.integers(0, 20_000), max_size=2),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_tokens_that_come_one_by_one_are_the_same_as_all_at_once(
    texts: list[tuple[str, bool]], cuts: list[int], renames: bool, ascii_only: bool, completions: bool
) -> None:
    path = COMPLETIONS if completions else CHAT
    end = [text("", "stop"), DONE] if completions else [STOP, DONE]
    events = [spoken(each, ascii_only=ascii_only, completions=completions) for each in texts]
    frames = [stream(end=False), *(b"%x\r\n%b\r\n" % (len(each), each) for each in (*events, *end)), b"0\r\n\r\n"]
    data = b"".join(frames)
    edges = list(accumulate(len(each) for each in frames))[:-1]
    whole = relay_at(path, {}, [data], renames=renames, strips=True)
    assert relay_at(path, {}, frames, renames=renames, strips=True) == whole
    assert relay_at(path, {}, cut(data, edges + cuts), renames=renames, strips=True) == whole


@pytest.mark.parametrize("renames", [False, True])
def test_what_looks_like_a_chunk_in_the_middle_of_one_is_not_taken_for_one(renames: bool) -> None:
    inner = chunk({"content": " inner"})
    frame = b"%x\r\n%b\r\n" % (len(inner), inner)
    outer = [b": a comment\n" + frame, b"data: {}\n\n" + frame, frame]
    for body in outer:
        first = body[: -len(frame)]
        pieces = [stream(end=False)]
        pieces += [b"%x\r\n%b\r\n" % (len(each), each) for each in (ROLE, HELLO, WORLD)]
        pieces += [b"%x\r\n" % len(body) + first, frame]
        pieces += [b"\r\n" + b"".join(b"%x\r\n%b\r\n" % (len(last), last) for last in (STOP, DONE)), b"0\r\n\r\n"]
        whole = relay_at(CHAT, {}, [b"".join(pieces)], renames=renames, strips=True)
        assert relay_at(CHAT, {}, pieces, renames=renames, strips=True) == whole


def test_ordinary_tokens_are_carried_without_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    read = UpstreamConnection.data_received

    def spy(connection: UpstreamConnection, data: bytes) -> None:
        seen.append(data)
        read(connection, data)

    monkeypatch.setattr(UpstreamConnection, "data_received", spy)
    for renames in (False, True):
        events = [chunk({"content": each}) for each in (" a", " b", "\u00e9", "c", '"', "d", "e")]
        frames = [b"%x\r\n%b\r\n" % (len(each), each) for each in (ROLE, *events, STOP, DONE)]
        seen.clear()
        relay_at(CHAT, {}, [stream(end=False), *frames, b"0\r\n\r\n"], renames=renames, strips=True)
        # The first token is read to see what tokens look like, and those in which JSON needs a backslash.
        said = [re.search(rb'"content":"([^,]*)"', data) for data in seen]
        assert [each[1] for each in said if each] == [b"", b" a", b"\\u00e9", b'\\"']


def test_where_nothing_is_to_be_changed_nothing_is() -> None:
    for case, (_, _, data, outcome) in REPLIES.items():
        if outcome is Outcome.OK:
            body, _ = relay(case, [data], renames=False, strips=False)
            assert body == (_body(data) if b"chunked" in data else data.partition(b"\r\n\r\n")[2])
