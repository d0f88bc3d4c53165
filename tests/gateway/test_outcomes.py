"""How replies count (G4, G7): outcomes, tokens and times."""

import json
import threading
from typing import Any

import pytest

from llmgwd.protocol.samples import ArmSample, Outcome
from llmgwd.verdict.sketch import quantile
from tests.gateway.answers import (
    DONE,
    HELLO,
    PLAIN_STREAM,
    ROLE,
    STOP,
    WORLD,
    answer,
    chunk,
    event,
    fails,
    says,
    streams,
    usage_chunk,
)
from tests.gateway.client import Client, ask, request
from tests.gateway.conftest import Rig
from tests.gateway.upstream import Connection, Request, Script

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"


def replies(value: Any, path_json: bool = True) -> Script:
    body = json.dumps(value).encode() if path_json else value
    return lambda connection, request: connection.reply(200, body)


def cut_stream(*events: bytes) -> Script:
    def script(connection: Connection, request: Request) -> None:
        connection.start_stream()
        for each in events:
            connection.chunk(each)
        connection.close()

    return script


def reset_stream(connection: Connection, request: Request) -> None:
    connection.start_stream()
    connection.chunk(HELLO)
    connection.reset()


def short_body(connection: Connection, request: Request) -> None:
    connection.send(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{"choices":[')
    connection.close()


def closing(*parts: bytes) -> Script:
    def script(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(parts))
        connection.close()

    return script


def response_event(kind: str, **more: Any) -> bytes:
    return b"event: %b\n" % kind.encode() + event({"type": kind, **more})


TOOL = chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]})
TEXT = event({"choices": [{"text": "a", "index": 0, "finish_reason": None}]})
TEXT_END = event({"choices": [{"text": "", "index": 0, "finish_reason": "length"}]})
COMPLETED: dict[str, Any] = {
    "status": "completed",
    "output": [{}],
    "usage": {"input_tokens": 3, "output_tokens": 4},
    "error": None,
}
INCOMPLETE = {"status": "incomplete", "output": [{}], "incomplete_details": {"reason": "max_output_tokens"}}
DELTA = response_event("response.output_text.delta", delta="a")

CASES: dict[str, tuple[str, Script, Outcome]] = {
    "answer": (CHAT, replies(answer()), Outcome.OK),
    "stream": (CHAT, streams(*PLAIN_STREAM), Outcome.OK),
    "stream without finish reason": (CHAT, streams(ROLE, HELLO, DONE), Outcome.OK),
    "stream without [DONE]": (CHAT, streams(ROLE, HELLO, STOP), Outcome.OK),
    "stream without an end": (CHAT, streams(ROLE, HELLO), Outcome.TRUNCATED),
    "stream cut after its end": (CHAT, cut_stream(ROLE, HELLO, STOP, DONE), Outcome.TRUNCATED),
    "stream cut": (CHAT, cut_stream(ROLE, HELLO), Outcome.TRUNCATED),
    "stream reset": (CHAT, reset_stream, Outcome.ERROR),
    "stream to the close": (CHAT, closing(*PLAIN_STREAM), Outcome.OK),
    "stream to an early close": (CHAT, closing(ROLE, HELLO), Outcome.TRUNCATED),
    "role only": (CHAT, streams(ROLE, STOP, DONE), Outcome.EMPTY),
    "nothing but done": (CHAT, streams(DONE), Outcome.EMPTY),
    "reasoning only": (CHAT, streams(chunk({"reasoning_content": "hm"}), STOP, DONE), Outcome.OK),
    "tool call only": (CHAT, streams(ROLE, TOOL, chunk({}, "tool_calls"), DONE), Outcome.OK),
    "error event": (CHAT, streams(ROLE, HELLO, event({"error": {"message": "x"}}), DONE), Outcome.ERROR),
    "llama.cpp's error field": (CHAT, streams(ROLE, HELLO, b'error: {"code":500}\n\n'), Outcome.ERROR),
    "empty answer": (CHAT, replies(answer("")), Outcome.EMPTY),
    "no choices": (CHAT, replies({"choices": []}), Outcome.EMPTY),
    "error in a 200": (CHAT, replies({"error": {"message": "x"}}), Outcome.ERROR),
    "short body": (CHAT, short_body, Outcome.TRUNCATED),
    "half a document": (CHAT, replies(b'{"choices":[', path_json=False), Outcome.TRUNCATED),
    "500": (CHAT, fails(500), Outcome.ERROR),
    "400": (CHAT, fails(400), Outcome.REJECTED),
    "429": (CHAT, fails(429), Outcome.REJECTED),
    "completions": ("/v1/completions", streams(TEXT, TEXT_END, DONE), Outcome.OK),
    "completions without an end": ("/v1/completions", streams(TEXT), Outcome.TRUNCATED),
    "embeddings": ("/v1/embeddings", replies({"data": [{"embedding": [1.0]}]}), Outcome.OK),
    "no embeddings": ("/v1/embeddings", replies({"data": []}), Outcome.EMPTY),
    "responses": (RESPONSES, streams(DELTA, response_event("response.completed", response=COMPLETED)), Outcome.OK),
    "responses without an end": (RESPONSES, streams(DELTA), Outcome.TRUNCATED),
    "responses that failed": (RESPONSES, streams(DELTA, response_event("response.failed")), Outcome.ERROR),
    "whole response": (RESPONSES, replies(COMPLETED), Outcome.OK),
    "empty response": (RESPONSES, replies({"status": "completed", "output": []}), Outcome.EMPTY),
    "other path": ("/rerank", replies({"results": []}), Outcome.OK),
    "other path, no body": ("/rerank", replies(b"", path_json=False), Outcome.OK),
}


@pytest.mark.parametrize("case", CASES)
def test_outcome(rig: Rig, case: str) -> None:
    path, script, expected = CASES[case]
    sample = one(rig, script, path)
    assert sample.outcomes == {expected: 1}


@pytest.mark.parametrize("counts_usage", [False, True])
@pytest.mark.parametrize("case", ["stream", "stream cut", "role only", "error event", "completions"])
def test_asking_for_usage_changes_no_outcome(rig: Rig, case: str, counts_usage: bool) -> None:
    path, script, expected = CASES[case]
    assert one(rig, script, path, counts_usage=counts_usage, stream=True).outcomes == {expected: 1}


@pytest.mark.parametrize(
    ("path", "script"),
    [
        (CHAT, replies(answer(finish="length"))),
        (CHAT, streams(HELLO, chunk({}, "length"), DONE)),
        ("/v1/completions", streams(TEXT, TEXT_END, DONE)),
        (RESPONSES, replies(INCOMPLETE)),
        (RESPONSES, streams(DELTA, response_event("response.incomplete", response=INCOMPLETE))),
    ],
    ids=["answer", "stream", "completions", "response", "response stream"],
)
def test_the_length_limit_is_noticed(rig: Rig, path: str, script: Script) -> None:
    sample = one(rig, script, path)
    assert (sample.outcomes, sample.length_limited) == ({Outcome.OK: 1}, 1)


def test_usage_is_asked_for_counted_and_taken_out_again(rig: Rig) -> None:
    engine = rig.upstream(says())
    name = rig.serve(engine, counts_usage=True)
    sent = b'{"stream":true,"model":"%b"}' % name.encode()
    reply = ask(rig.port, CHAT, sent)
    assert engine.requests[-1].body == b'{"stream_options":{"include_usage":true},' + sent[1:]
    assert b"usage" not in reply.body
    assert reply.body.endswith(DONE)
    rig.daemon.await_total(name, 1)
    sample = rig.daemon.sample(name)
    assert (sample.prompt_tokens, sample.completion_tokens) == (5, 7)


@pytest.mark.parametrize(
    ("options", "reaches", "shown"),
    [
        ({"include_usage": True}, {"include_usage": True}, True),
        ({"include_usage": False}, {"include_usage": False}, False),
        ({}, {"include_usage": True}, False),
        (None, {"include_usage": True}, False),
        ({"chunk_size": 1}, {"include_usage": True, "chunk_size": 1}, False),
    ],
    ids=["asked", "declined", "empty", "null", "other"],
)
def test_the_clients_own_stream_options_hold(rig: Rig, options: Any, reaches: Any, shown: bool) -> None:
    engine = rig.upstream(says())
    name = rig.serve(engine, counts_usage=True)
    reply = ask(rig.port, CHAT, {"model": name, "stream": True, "stream_options": options})
    assert engine.requests[-1].json["stream_options"] == reaches
    assert (b'"usage"' in reply.body) == shown


def test_whole_answers_and_other_paths_are_not_asked_for_usage(rig: Rig) -> None:
    engine = rig.upstream(says())
    name = rig.serve(engine, counts_usage=True)
    for path, stream in ((CHAT, False), (RESPONSES, True)):
        ask(rig.port, path, {"model": name, "stream": stream})
        assert "stream_options" not in engine.requests[-1].json


def test_tokens_of_a_whole_answer_come_from_usage_and_times_only_from_the_engine(rig: Rig) -> None:
    sample = one(rig, replies(answer()))
    assert (sample.prompt_tokens, sample.completion_tokens) == (5, 7)
    assert sample.ttft == sample.token_time == {}
    timings = {"prompt_n": 5, "prompt_ms": 200.0, "predicted_n": 7, "predicted_per_token_ms": 20.0}
    sample = one(rig, replies(answer(timings=timings)))
    assert quantile(sample.ttft, 0.5) == pytest.approx(0.2, rel=0.05)
    assert quantile(sample.token_time, 0.5) == pytest.approx(0.02, rel=0.05)


def test_chunks_are_never_counted_as_tokens(rig: Rig) -> None:
    sample = one(rig, streams(*PLAIN_STREAM))
    assert (sample.completion_tokens, sample.token_time) == (0, {})
    assert sum(sample.ttft.values()) == 1


@pytest.mark.parametrize(
    "first",
    [HELLO, chunk({"reasoning_content": "hm"}), chunk({"reasoning": "hm"}), TOOL],
    ids=["content", "reasoning_content", "reasoning", "tool call"],
)
def test_the_first_token_is_neither_head_nor_ping_nor_role(rig: Rig, first: bytes) -> None:
    gate = Gate()

    def script(connection: Connection, request: Request) -> None:
        connection.start_stream()
        connection.chunk(b": ping\n\n")
        connection.chunk(ROLE)
        gate.hold(0.25)
        connection.chunk(first)
        gate.hold(0.2)
        connection.chunk(WORLD + STOP)
        connection.chunk(usage_chunk(3, 3) + DONE)
        connection.end_stream()

    sample = one(rig, script)
    assert sum(sample.ttft.values()) == sum(sample.token_time.values()) == 1
    ttft, each = quantile(sample.ttft, 0.5), quantile(sample.token_time, 0.5)
    assert ttft is not None
    assert each is not None
    # The script holds at least this long before the first token.
    assert ttft > 0.24


class Gate:
    """Passes a known time on the engine's side, which is what is being measured."""

    def hold(self, seconds: float) -> None:
        threading.Event().wait(seconds)


def test_a_client_that_leaves_after_the_last_event_cancelled_nothing(rig: Rig) -> None:
    left = threading.Event()

    def script(connection: Connection, request: Request) -> None:
        connection.start_stream()
        connection.chunk(HELLO + STOP + DONE)
        left.wait(10)
        connection.wait_gone()

    name = rig.serve(script)
    with Client(rig.port) as client:
        client.send(request(CHAT, {"model": name, "stream": True}))
        client.read_until(b"[DONE]")
    left.set()
    rig.daemon.await_total(name, 1)
    assert rig.daemon.sample(name).outcomes == {Outcome.OK: 1}


def one(rig: Rig, script: Script, path: str = CHAT, *, counts_usage: bool = False, stream: bool = True) -> ArmSample:
    """The sample of a single request to an engine with this script."""
    name = rig.serve(script, counts_usage=counts_usage)
    with Client(rig.port) as client:
        client.ask(path, {"model": name, "stream": stream})
    rig.daemon.await_total(name, 1)
    return rig.daemon.sample(name)
