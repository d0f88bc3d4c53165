"""What replies say about themselves: tokens, finish, failure; read from single events and whole bodies."""

from typing import Any

import msgspec

from llmgwd.gateway.ask import Kind
from llmgwd.gateway.health import Health
from llmgwd.gateway.json_reading import UNREADABLE, decoder
from llmgwd.protocol.samples import Outcome


class Facts:
    """What is known of one reply so far. Times are seconds of the monotonic clock; None is unknown."""

    __slots__ = (
        "answered",
        "completion_tokens",
        "failed",
        "finished",
        "first_token_at",
        "health",
        "last_token_at",
        "length_limited",
        "prompt_s",
        "prompt_tokens",
        "token_s",
        "unreadable",
    )

    def __init__(self, health: Health | None = None) -> None:
        self.health = health
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


class _Said(msgspec.Struct, gc=False):
    """A delta or a message: any of it that is not empty is an answer."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None
    audio: Any = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Said | None = None
    message: _Said | None = None
    text: Any = None
    index: Any = 0
    finish_reason: Any = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    input_tokens: Any = None
    output_tokens: Any = None


class _Timings(msgspec.Struct, gc=False):
    """llama.cpp's own measurements."""

    prompt_n: Any = None
    prompt_ms: Any = None
    predicted_n: Any = None
    predicted_per_token_ms: Any = None


class Chunk(msgspec.Struct, gc=False):
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
        for choice in self.choices or ():  # noqa: SIM110 - once a chunk, and a generator costs more than all else
            if choice.finish_reason:
                return True
        return False


class _Reason(msgspec.Struct):
    reason: Any = None


class _Response(msgspec.Struct):
    """An answer of the responses API."""

    status: Any = None
    output: list[msgspec.Raw] | None = None
    usage: _Usage | None = None
    incomplete_details: _Reason | None = None
    error: Any = None


class _Part(msgspec.Struct):
    text: Any = None


class _Item(msgspec.Struct):
    """One of a response's output: a message of several parts, or a function call."""

    content: list[_Part] | None = None
    arguments: Any = None


class _ResponseEvent(msgspec.Struct):
    type: Any = None
    delta: Any = None
    response: _Response | None = None
    error: Any = None


class _Data(msgspec.Struct):
    data: list[msgspec.Raw] | None = None
    error: Any = None


class _Error(msgspec.Struct):
    error: Any = None


_chunk = decoder(Chunk)
_response = decoder(_Response)
_response_event = decoder(_ResponseEvent)
_item = decoder(_Item)
_data = decoder(_Data)
_error = decoder(_Error)

DONE = b"[DONE]"
MOST_TOKENS = 2**32
MOST_MILLISECONDS = 1e9
"""What an engine says of itself beyond these is not believed."""


def ordinary_chunk(data: bytes) -> Chunk | None:
    """The chat or completions chunk, if it says nothing but more tokens."""
    try:
        chunk = _chunk(data)
    except UNREADABLE:
        return None
    if chunk.usage is not None or chunk.timings is not None or chunk.error or chunk.finishes:
        return None
    return chunk


def read_event(kind: Kind, data: bytes, facts: Facts, now: float) -> Chunk | None:
    """Takes one event's data into the facts; gives the chunk when it is one of chat or completions."""
    if data == DONE:
        facts.finished = True
        return None
    try:
        if kind is Kind.CHAT or kind is Kind.COMPLETIONS:
            chunk = _chunk(data)
            read_chunk(chunk, facts, now)
            return chunk
        if kind is Kind.RESPONSES:
            _read_response_event(_response_event(data), facts, now)
        else:
            facts.answered = True
            facts.failed |= bool(_error(data).error)
    except (msgspec.ValidationError, RecursionError):
        # JSON, but not of the documented shape: it says something, and no more can be told.
        facts.answered = True
    except UNREADABLE:
        # It passes as it is, and counts for nothing.
        pass
    return None


def read_whole(kind: Kind, body: bytes, facts: Facts) -> None:
    """Takes a whole JSON body into the facts. A body that is not whole JSON leaves `finished` false."""
    try:
        if kind is Kind.CHAT or kind is Kind.COMPLETIONS:
            read_chunk(_chunk(body), facts, None)
        elif kind is Kind.RESPONSES:
            _read_response(_response(body), facts, streamed=False)
        elif kind is Kind.EMBEDDINGS:
            data = _data(body)
            facts.answered = bool(data.data)
            facts.failed = bool(data.error)
        else:
            facts.answered = True
            facts.failed = bool(_error(body).error)
    except (msgspec.ValidationError, RecursionError):
        # JSON, but not of the documented shape: there is an answer, and no more can be told.
        facts.answered = facts.unreadable = True
    except UNREADABLE:
        return
    facts.finished = True


def read_chunk(chunk: Chunk, facts: Facts, now: float | None) -> None:
    """Takes a chunk that came at `now`, or a whole answer, into the facts."""
    for choice in chunk.choices or ():
        said = choice.delta or choice.message
        text = choice.text if said is None else said.content
        if text or (said is not None and _says_otherwise(said)):
            facts.answered = True
            if now is not None:
                _token(facts, now)
            health = facts.health
            if health is not None:
                if text.__class__ is str and (said is None or said.tool_calls is None):
                    health.answer(choice.index, text)
                else:
                    _hear(health, choice.index, text, said)
        if choice.finish_reason:
            facts.finished = True
            facts.length_limited |= choice.finish_reason == "length"
    if chunk.timings is not None:
        _read_timings(chunk.timings, facts)
    if chunk.usage is not None:
        _read_usage(chunk.usage, facts)
    if chunk.error:
        facts.failed = True


def _says_otherwise(said: _Said) -> bool:
    return bool(
        said.reasoning_content or said.tool_calls or said.reasoning or said.function_call or said.refusal or said.audio
    )


def _hear(health: Health, choice: Any, text: Any, said: _Said | None) -> None:
    if isinstance(text, str) and text:
        health.answer(choice, text)
    if said is None:
        return
    if not text:
        thought = said.reasoning_content or said.reasoning
        if isinstance(thought, str):
            health.hear(choice, thought)
    if isinstance(said.tool_calls, list):
        for position, call in enumerate(said.tool_calls):
            _hear_call(health, choice, position, call)


def _hear_call(health: Health, choice: Any, position: int, call: Any) -> None:
    """A tool call, whole or a piece; a piece says which of the calls it belongs to."""
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str) and arguments:
        index = call.get("index")
        health.keep(choice, index if isinstance(index, int) else position, arguments)


def _token(facts: Facts, now: float) -> None:
    if facts.first_token_at is None:
        facts.first_token_at = now
    facts.last_token_at = now


def _read_usage(usage: _Usage, facts: Facts) -> None:
    prompt = usage.prompt_tokens if usage.prompt_tokens is not None else usage.input_tokens
    completion = usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens
    if _is_count(prompt):
        facts.prompt_tokens = prompt
    if _is_count(completion):
        facts.completion_tokens = completion


def _read_timings(timings: _Timings, facts: Facts) -> None:
    if facts.prompt_tokens is None and _is_count(timings.prompt_n):
        facts.prompt_tokens = timings.prompt_n
    if facts.completion_tokens is None and _is_count(timings.predicted_n):
        facts.completion_tokens = timings.predicted_n
    if _is_time(timings.prompt_ms):
        facts.prompt_s = timings.prompt_ms / 1000
    if _is_time(timings.predicted_per_token_ms):
        facts.token_s = timings.predicted_per_token_ms / 1000


def _is_count(tokens: Any) -> bool:
    """Whether an engine can mean it: what does not fit a report would end all of them."""
    return isinstance(tokens, int) and not isinstance(tokens, bool) and 0 <= tokens <= MOST_TOKENS


def _is_time(milliseconds: Any) -> bool:
    return isinstance(milliseconds, int | float) and 0 < milliseconds <= MOST_MILLISECONDS


def _read_response_event(event: _ResponseEvent, facts: Facts, now: float) -> None:
    kind = event.type if isinstance(event.type, str) else ""
    if kind.endswith(".delta"):
        facts.answered = True
        _token(facts, now)
        if facts.health is not None and kind == "response.output_text.delta" and isinstance(event.delta, str):
            facts.health.hear(0, event.delta)
    elif kind in ("response.completed", "response.incomplete"):
        if event.response is not None:
            _read_response(event.response, facts, streamed=True)
        facts.finished = True
    elif kind in ("response.failed", "error") or event.error:
        facts.failed = facts.finished = True


def _read_response(response: _Response, facts: Facts, *, streamed: bool) -> None:
    if facts.health is not None:
        _hear_output(facts.health, response.output or [], streamed=streamed)
    facts.answered |= bool(response.output)
    facts.failed |= bool(response.error) or response.status == "failed"
    if response.incomplete_details is not None:
        facts.length_limited = response.incomplete_details.reason == "max_output_tokens"
    if response.usage is not None:
        _read_usage(response.usage, facts)


def _hear_output(health: Health, output: list[msgspec.Raw], *, streamed: bool) -> None:
    """A whole response; of a stream the text was heard before, piece by piece, and only its form is left to check."""
    for number, raw in enumerate(output):
        try:
            item = _item(raw)
        except UNREADABLE:
            continue
        if isinstance(item.arguments, str) and item.arguments:
            health.keep(0, number, item.arguments)
        for part in item.content or ():
            if not isinstance(part.text, str):
                continue
            if not streamed:
                health.hear(0, part.text)
            health.check(number, part.text)


def judge(kind: Kind, status: int, facts: Facts, *, streamed: bool, whole: bool) -> Outcome:
    """How a reply that ended counts (G4). `whole` is whether its framing reached the end it announced."""
    if status >= 500:
        return Outcome.ERROR
    if status >= 400:
        return Outcome.REJECTED
    if facts.failed:
        return Outcome.ERROR
    ends_itself = kind in (Kind.CHAT, Kind.COMPLETIONS, Kind.RESPONSES) or not streamed
    if kind is not Kind.OTHER and status != 200:
        # Accepted, moved, or nothing to say: no answer was promised.
        return Outcome.OK if whole else Outcome.TRUNCATED
    if not whole or (ends_itself and not facts.finished and not facts.unreadable):
        return Outcome.TRUNCATED
    return Outcome.OK if facts.answered or kind is Kind.OTHER else Outcome.EMPTY
