import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from llmgwd.gateway.ask import Kind
from llmgwd.gateway.meter import Facts
from llmgwd.gateway.readers import StreamReader
from llmgwd.gateway.rename import Renamer
from llmgwd.gateway.sse import MAX_EVENT_BYTES, EventCutter
from tests.gateway.answers import DONE, HELLO, ROLE, STOP, WORLD, usage_chunk

TIMED_USAGE = usage_chunk(3, 9, timings={"prompt_n": 3, "prompt_ms": 5.0, "predicted_n": 9})
STREAM = b"".join((b": ping\n\n", ROLE, HELLO, WORLD, b"event: x\nid: 7\n\n", STOP, TIMED_USAGE, DONE))


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def relay(reader: StreamReader, fed: list[bytes]) -> tuple[bytes, dict[str, object]]:
    out = b"".join(reader.feed(piece, 1.0) for piece in fed) + reader.finish()
    facts = reader.facts
    return out, {name: getattr(facts, name) for name in Facts.__slots__}


line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
cuts = st.lists(st.integers(0, 5000), max_size=40)


@given(line_ends, cuts, st.booleans(), st.booleans())
def test_any_cut_gives_the_same_bytes_and_the_same_counts(
    line_end: bytes, at: list[int], strips: bool, renames: bool
) -> None:
    data = STREAM.replace(b"\n", line_end)

    def reader() -> StreamReader:
        return StreamReader(Kind.CHAT, Renamer("asked") if renames else None, strips)

    whole = relay(reader(), [data])
    assert relay(reader(), pieces(data, at)) == whole
    if not strips and not renames:
        assert whole[0] == data
    assert whole[1]["completion_tokens"] == 9
    assert whole[1]["finished"]


@given(st.lists(st.sampled_from([b"data: a", b"data:b", b": c", b"\n", b"\r\n", b"\r", b"\xef\xbb\xbf", b"x"])), cuts)
def test_events_and_rest_are_exactly_what_was_fed(parts: list[bytes], at: list[int]) -> None:
    data = b"".join(parts)
    cutter = EventCutter()
    raw = b"".join(event.raw for piece in pieces(data, at) for event in cutter.feed(piece))
    assert raw + cutter.pending == data


@given(line_ends, st.booleans())
def test_data_lines_join_by_the_standard(line_end: bytes, space: bool) -> None:
    mark = b"data: " if space else b"data:"
    (event,) = EventCutter().feed(
        b"\xef\xbb\xbf" + line_end.join([mark + b"one", b": comment", mark + b"two", b"data", b"id: 3", b"", b""])
    )
    assert event.data == b"one\ntwo\n"


def test_strip_leaves_what_the_client_would_have_seen() -> None:
    out, facts = relay(StreamReader(Kind.CHAT, None, True), [ROLE + HELLO + STOP, usage_chunk(3, 9) + DONE])
    assert out == ROLE + HELLO + STOP + DONE
    assert facts["completion_tokens"] == 9


def test_timings_return_to_the_chunk_that_carries_them_without_usage() -> None:
    out, facts = relay(StreamReader(Kind.CHAT, None, True), [ROLE, HELLO, STOP, TIMED_USAGE, DONE])
    last = STOP[:-3] + b',"timings":{"prompt_n":3,"prompt_ms":5.0,"predicted_n":9}}\n\n'
    assert out == ROLE + HELLO + last + DONE
    assert facts["prompt_tokens"] == 3


def test_rename_touches_only_the_top_level_name() -> None:
    inner = {"model": "x", "choices": [{"delta": {"content": 'say "model": y', "model": "inner"}}], "z": {"model": 1}}
    data = b"data: " + json.dumps(inner).encode() + b"\n\n"
    out, _ = relay(StreamReader(Kind.CHAT, Renamer("asked"), False), [data])
    assert out == data.replace(b'{"model": "x"', b'{"model": "asked"')


def test_rename_reaches_into_a_response_event_and_over_several_data_lines() -> None:
    data = b'event: response.created\ndata: {"type":"response.created",\ndata: "response":{"model":"engine"}}\n\n'
    out, _ = relay(StreamReader(Kind.RESPONSES, Renamer("asked"), False), [data])
    assert out == data.replace(b'"engine"', b'"asked"')


def test_an_endless_event_passes_unread_and_is_not_kept() -> None:
    cutter = EventCutter()
    kept = 0
    passed = b""
    for _ in range(200):
        passed += b"".join(event.raw for event in cutter.feed(b"data: " + b"x" * 65536))
        kept = max(kept, len(cutter.pending))
    assert kept <= MAX_EVENT_BYTES
    assert not cutter.at_boundary
    (rest, following) = cutter.feed(b"\n\ndata: y\n\n")
    assert rest.data == b""
    assert following.data == b"y"
    assert cutter.skipped
