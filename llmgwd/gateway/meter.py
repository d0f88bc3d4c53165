"""What replies say about themselves: tokens, finish, failure; read from single events and whole bodies."""

from typing import Any

import msgspec

from llmgwd.gateway.ask import Kind
from llmgwd.protocol.samples import Outcome


class Facts:
    """What is known of one reply so far. Times are seconds of the monotonic clock; None is unknown."""

    __slots__ = (
        "answered",
        "completion_tokens",
        "failed",
        "finished",
        "first_token_at",
        "last_token_at",
        "length_limited",
        "prompt_s",
        "prompt_tokens",
        "token_s",
        "unreadable",
    )

    def __init__(self) -> None:
        self.answered = False
        """Whether there was content, reasoning or a tool call (or bytes, where no more can be told)."""
        self.finished = False
        """Whether the reply said its end: a finish reason, `[DONE]`, a closing event."""
        self.failed = False
        """Whether a 200 carried an error."""
        self.unreadable = False
        """Whether part of it could not be read, so that a missing end proves nothing."""
        self.length_limited = False
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.prompt_s: float | None = None
        """The engine's own time to read the prompt."""
        self.token_s: float | None = None
        """The engine's own time per token."""


class _Said(msgspec.Struct):
    """A delta or a message: any of it that is not empty is an answer."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None
    audio: Any = None


class _Choice(msgspec.Struct):
    delta: _Said | None = None
    message: _Said | None = None
    text: Any = None
    finish_reason: Any = None


class _Usage(msgspec.Struct):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    input_tokens: Any = None
    output_tokens: Any = None


class _Timings(msgspec.Struct):
    """llama.cpp's own measurements."""

    prompt_n: Any = None
    prompt_ms: Any = None
    predicted_n: Any = None
    predicted_per_token_ms: Any = None


class Chunk(msgspec.Struct):
    """A chat or completions chunk, or the whole answer."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: Any = None

    @property
    def is_usage_only(self) -> bool:
        return self.usage is not None and self.choices == []

    @property
    def finishes(self) -> bool:
        return bool(self.choices) and any(choice.finish_reason for choice in self.choices or ())


class _Reason(msgspec.Struct):
    reason: Any = None


class _Response(msgspec.Struct):
    """An answer of the responses API."""

    status: Any = None
    output: list[msgspec.Raw] | None = None
    usage: _Usage | None = None
    incomplete_details: _Reason | None = None
    error: Any = None


class _ResponseEvent(msgspec.Struct):
    type: Any = None
    response: _Response | None = None
    error: Any = None


class _Data(msgspec.Struct):
    data: list[msgspec.Raw] | None = None
    error: Any = None


class _Error(msgspec.Struct):
    error: Any = None


_chunk = msgspec.json.Decoder(Chunk).decode
_response = msgspec.json.Decoder(_Response).decode
_response_event = msgspec.json.Decoder(_ResponseEvent).decode
_data = msgspec.json.Decoder(_Data).decode
_error = msgspec.json.Decoder(_Error).decode

DONE = b"[DONE]"


def is_ordinary(data: bytes) -> bool:
    """Whether chat or completions events say nothing but more tokens, told without reading them.

    False may be wrong, true never: quotes inside a JSON string are escaped, so a key's text is a key.
    """
    unfinished = data.count(b'"finish_reason":null') or data.count(b'"finish_reason": null')
    return (
        data.count(b"finish_reason") == unfinished
        and b'"usage"' not in data
        and b'"error"' not in data
        and b"[DONE]" not in data
        and b"\\u00" not in data
    )


def read_event(kind: Kind, data: bytes, facts: Facts, now: float) -> Chunk | None:
    """Takes one event's data into the facts; gives the chunk when it is one of chat or completions."""
    if data == DONE:
        facts.finished = True
        return None
    try:
        if kind is Kind.CHAT or kind is Kind.COMPLETIONS:
            chunk = _chunk(data)
            _read_chunk(chunk, facts, now)
            return chunk
        if kind is Kind.RESPONSES:
            _read_response_event(_response_event(data), facts, now)
        else:
            facts.answered = True
            facts.failed |= bool(_error(data).error)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Not the shape this API documents: it passes as it is, and counts for nothing.
        pass
    return None


def read_whole(kind: Kind, body: bytes, facts: Facts) -> None:
    """Takes a whole JSON body into the facts. A body that is not whole JSON leaves `finished` false."""
    try:
        if kind is Kind.CHAT or kind is Kind.COMPLETIONS:
            _read_chunk(_chunk(body), facts, None)
        elif kind is Kind.RESPONSES:
            _read_response(_response(body), facts)
        elif kind is Kind.EMBEDDINGS:
            data = _data(body)
            facts.answered = bool(data.data)
            facts.failed = bool(data.error)
        else:
            facts.answered = True
            facts.failed = bool(_error(body).error)
    except msgspec.ValidationError:
        # JSON, but not of the documented shape: there is an answer, and no more can be told.
        facts.answered = facts.unreadable = True
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    facts.finished = True


def _says(said: _Said | None) -> bool:
    return said is not None and bool(
        said.content
        or said.reasoning_content
        or said.tool_calls
        or said.reasoning
        or said.function_call
        or said.refusal
        or said.audio
    )


def _read_chunk(chunk: Chunk, facts: Facts, now: float | None) -> None:
    for choice in chunk.choices or ():
        if _says(choice.delta) or choice.text or _says(choice.message):
            facts.answered = True
            _token(facts, now)
        if choice.finish_reason:
            facts.finished = True
            facts.length_limited |= choice.finish_reason == "length"
    if chunk.timings is not None:
        _read_timings(chunk.timings, facts)
    if chunk.usage is not None:
        _read_usage(chunk.usage, facts)
    if chunk.error:
        facts.failed = True


def _token(facts: Facts, now: float | None) -> None:
    if now is None:
        return
    if facts.first_token_at is None:
        facts.first_token_at = now
    facts.last_token_at = now


def _read_usage(usage: _Usage, facts: Facts) -> None:
    prompt = usage.prompt_tokens if usage.prompt_tokens is not None else usage.input_tokens
    completion = usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens
    if isinstance(prompt, int):
        facts.prompt_tokens = prompt
    if isinstance(completion, int):
        facts.completion_tokens = completion


def _read_timings(timings: _Timings, facts: Facts) -> None:
    if facts.prompt_tokens is None and isinstance(timings.prompt_n, int):
        facts.prompt_tokens = timings.prompt_n
    if facts.completion_tokens is None and isinstance(timings.predicted_n, int):
        facts.completion_tokens = timings.predicted_n
    if isinstance(timings.prompt_ms, int | float):
        facts.prompt_s = timings.prompt_ms / 1000
    if isinstance(timings.predicted_per_token_ms, int | float):
        facts.token_s = timings.predicted_per_token_ms / 1000


def _read_response_event(event: _ResponseEvent, facts: Facts, now: float) -> None:
    kind = event.type if isinstance(event.type, str) else ""
    if kind.endswith(".delta"):
        facts.answered = True
        _token(facts, now)
    elif kind in ("response.completed", "response.incomplete"):
        if event.response is not None:
            _read_response(event.response, facts)
        facts.finished = True
    elif kind in ("response.failed", "error") or event.error:
        facts.failed = facts.finished = True


def _read_response(response: _Response, facts: Facts) -> None:
    facts.answered |= bool(response.output)
    facts.failed |= bool(response.error) or response.status == "failed"
    if response.incomplete_details is not None:
        facts.length_limited = response.incomplete_details.reason == "max_output_tokens"
    if response.usage is not None:
        _read_usage(response.usage, facts)


def judge(kind: Kind, status: int, facts: Facts, *, streamed: bool, whole: bool) -> Outcome:
    """How a reply that ended counts (G4). `whole` is whether its framing reached the end it announced."""
    if status >= 500:
        return Outcome.ERROR
    if status >= 400:
        return Outcome.REJECTED
    if facts.failed:
        return Outcome.ERROR
    ends_itself = kind in (Kind.CHAT, Kind.COMPLETIONS, Kind.RESPONSES) or not streamed
    if not whole or (ends_itself and not facts.finished and not facts.unreadable):
        return Outcome.TRUNCATED
    return Outcome.OK if facts.answered else Outcome.EMPTY
