"""What counts as an answer in bad shape: one that runs in circles, one that is not the JSON asked for."""

import inspect
import json
import random
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgwd.gateway.health import LEAST_BYTES, MOST_KEPT_BYTES, WINDOW_BYTES, Health
from llmgwd.protocol.samples import Outcome
from tests.gateway.answers import DONE, answer, chunk, event, streams
from tests.gateway.client import Client
from tests.gateway.conftest import Rig
from tests.gateway.upstream import Connection, Request, Script

CHAT = "/v1/chat/completions"
LOOP = "and then we shall see what happens next, "
ROWS = "".join(f"| {number} | item {number * 7919 % 1000} | {number * 31 % 97} |\n" for number in range(400))
TEXTS: dict[str, tuple[str, bool]] = {
    "code": (inspect.getsource(inspect), False),
    "a table": (ROWS, False),
    "counting": (" ".join(str(number) for number in range(2000)), False),
    "random letters": ("".join(random.Random(1).choices(string.ascii_letters, k=5000)), False),
    "a sentence over and over": (LOOP * 100, True),
    "a word over and over": ("the " * 600, True),
    "one character": ("\n" * 3000, True),
    "a loop with a number in it": ("".join(f"{LOOP}{number} " for number in range(100)), False),
    "sense, then a loop": (inspect.getsource(json)[:4000] + LOOP * 60, True),
    "a loop, then sense": (LOOP * 60 + inspect.getsource(inspect)[:4000], False),
    "a short loop": ("ha " * 100, False),
    "nothing": ("", False),
}


def heard(text: str, size: int) -> Health:
    health = Health(asks_json=False)
    for at in range(0, len(text), size):
        health.answer(0, text[at : at + size])
    return health


@pytest.mark.parametrize("size", [4, 100, 100_000])
@pytest.mark.parametrize("case", TEXTS)
def test_an_answer_that_runs_in_circles_is_told(case: str, size: int) -> None:
    text, expected = TEXTS[case]
    assert heard(text, size).is_degenerate(length_limited=True) is expected


def test_several_answers_are_not_taken_for_one_that_repeats_itself() -> None:
    health = Health(asks_json=False)
    for choice in (0, 1, 0, 1):
        health.answer(choice, LOOP * 50)
    assert not health.is_degenerate(length_limited=False)


def test_reasoning_that_runs_in_circles_counts_too() -> None:
    health = Health(asks_json=False)
    health.hear(0, LOOP * 100)
    assert health.is_degenerate(length_limited=False)


@given(st.lists(st.text(max_size=300), max_size=80))
def test_memory_is_bounded_whatever_is_said(pieces: list[str]) -> None:
    health = Health(asks_json=False)
    for piece in pieces * 5:
        health.answer(0, piece)
        assert len(health.tail) <= 4 * WINDOW_BYTES
    health.is_degenerate(length_limited=False)


def test_json_longer_than_what_is_kept_is_not_judged() -> None:
    health = Health(asks_json=True)
    for _ in range(MOST_KEPT_BYTES // 1000 + 1):
        health.answer(0, "{" * 1000)
        assert sum(len(each) for each in (health._documents or {}).values()) <= MOST_KEPT_BYTES
    assert not health.is_degenerate(length_limited=False)


# through the gateway


def said(*texts: str, finish: str = "stop") -> Script:
    return streams(*(chunk({"content": text}) for text in texts), chunk({}, finish), DONE)


def calls(*pieces: tuple[int, str]) -> Script:
    deltas = ({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]} for index, arguments in pieces)
    return streams(*(chunk(delta) for delta in deltas), chunk({}, "tool_calls"), DONE)


def whole(content: Any, finish: str = "stop") -> Script:
    return lambda connection, request: connection.json(answer(content, finish))


def whole_calls(*arguments: str) -> Script:
    message = {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": each}} for each in arguments]}
    return lambda connection, request: connection.json(
        {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    )


def text_chunks(*texts: str) -> Script:
    chunks = [event({"choices": [{"text": text, "index": 0, "finish_reason": None}]}) for text in texts]
    return streams(*chunks, event({"choices": [{"text": "", "index": 0, "finish_reason": "stop"}]}), DONE)


def responds(text: str, streamed: bool) -> Script:
    output = [{"type": "message", "content": [{"type": "output_text", "text": text}]}]
    response = {"status": "completed", "output": output}
    pieces = [text[at : at + 50] for at in range(0, len(text), 50)]

    def script(connection: Connection, request: Request) -> None:
        if not streamed:
            connection.json(response)
            return
        deltas = [event({"type": "response.output_text.delta", "delta": piece}) for piece in pieces]
        connection.stream(*deltas, event({"type": "response.completed", "response": response}))

    return script


JSON = {"response_format": {"type": "json_object"}}
SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}}
FORM = {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}
LONG = LOOP * 60
COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
CASES: dict[str, tuple[str, dict[str, Any], Script, int]] = {
    "sense": (CHAT, {}, said("a sentence", " or two"), 0),
    "a loop": (CHAT, {}, said(*[LOOP] * 60), 1),
    "a whole loop": (CHAT, {}, whole(LONG), 1),
    "a loop of completions": (COMPLETIONS, {}, text_chunks(*[LOOP] * 60), 1),
    "a loop of responses": (RESPONSES, {}, responds(LONG, True), 1),
    "a whole response in a loop": (RESPONSES, {}, responds(LONG, False), 1),
    "JSON": (CHAT, JSON, said('{"a":', " [1, ", '"\\u00e9 }"]}'), 0),
    "JSON that is none": (CHAT, JSON, said('{"a":', " [1, "), 1),
    "prose for JSON": (CHAT, SCHEMA, said("Sure! Here is your JSON: {}"), 1),
    "JSON in a fence": (CHAT, JSON, said("```json\n", "{}", "\n```"), 1),
    "JSON cut at the limit": (CHAT, JSON, said('{"a":', finish="length"), 0),
    "broken text nobody asked to be JSON": (CHAT, {"response_format": {"type": "text"}}, said('{"a":'), 0),
    "whole JSON": (CHAT, SCHEMA, whole('{"a": 1}'), 0),
    "a whole that is no JSON": (CHAT, JSON, whole("{'a': 1}"), 1),
    "regular JSON": (CHAT, JSON, whole(json.dumps([{"id": n, "on": True} for n in range(300)])), 0),
    "response JSON": (RESPONSES, FORM, responds('{"a": 1}', True), 0),
    "a response that is no JSON": (RESPONSES, FORM, responds("{a: 1}", True), 1),
    "a whole response that is no JSON": (RESPONSES, FORM, responds("{a: 1}", False), 1),
    "tool calls": (CHAT, {"tools": [{}]}, calls((0, '{"a'), (0, '":1}'), (1, "{}")), 0),
    "a broken tool call": (CHAT, {"tools": [{}]}, calls((0, "{}"), (1, '{"a'), (1, ":1}")), 1),
    "whole tool calls": (CHAT, {}, whole_calls("{}", '{"a": 1}', ""), 0),
    "a broken whole tool call": (CHAT, {}, whole_calls("{}", "{'a': 1}"), 1),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_answer_in_bad_shape_is_ok_and_degenerate(rig: Rig, case: str) -> None:
    path, fields, script, expected = CASES[case]
    name = rig.serve(script)
    with Client(rig.port) as client:
        assert client.ask(path, {"model": name, "stream": True, **fields}).status == 200
    rig.daemon.await_total(name, 1)
    sample = rig.daemon.sample(name)
    assert (sample.outcomes, sample.degenerate) == ({Outcome.OK: 1}, expected)


def test_what_is_said_stays_in_the_worker(rig: Rig) -> None:
    secret = "the-secret-phrase " * 200
    name = rig.serve(said(secret))
    with Client(rig.port) as client:
        client.ask(CHAT, {"model": name, "stream": True, "messages": [{"content": "the-secret-prompt"}]})
    rig.daemon.await_total(name, 1)
    assert rig.daemon.sample(name).degenerate == 1
    assert "secret" not in repr(rig.daemon.reports)
    assert "secret" not in rig.log.read_text()


def test_the_fixed_lengths_fit_each_other() -> None:
    assert LEAST_BYTES <= WINDOW_BYTES
