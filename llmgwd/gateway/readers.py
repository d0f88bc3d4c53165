"""A reply's body on its way to the client: read for the count, changed only where the gateway itself is the cause."""

import msgspec

from llmgwd.gateway import splice
from llmgwd.gateway.ask import Ask, Kind
from llmgwd.gateway.meter import Chunk, Facts, is_ordinary, read_event, read_whole
from llmgwd.gateway.sse import Event, EventCutter, in_raw
from llmgwd.gateway.upstream import UpstreamConnection

MAX_READ_BYTES = 16 * 1024 * 1024
"""A JSON body that is longer passes unread."""


class PlainReader:
    """Bytes whose meaning is not known here: error bodies, audio, anything compressed."""

    streamed = False
    changes = False
    """Whether the bytes may leave in another number than they came in."""
    at_boundary = False
    """Whether an event of the gateway's own could follow what was given out so far."""

    __slots__ = ("facts",)

    def __init__(self) -> None:
        self.facts = Facts()

    def feed(self, data: bytes, now: float) -> bytes:
        """Takes what came at `now`; gives what may go on to the client."""
        self.facts.answered = True
        return data

    def finish(self) -> bytes:
        """The reply ended: gives what was held back."""
        self.facts.finished = True
        return b""

    def abandon(self) -> bytes:
        """The reply broke off: gives what was held back and is whole."""
        return b""


class JsonReader:
    """One JSON document. With a name to put back it is held until it is whole."""

    streamed = False
    at_boundary = False

    __slots__ = ("_asked", "_kind", "_pieces", "_size", "changes", "facts")

    def __init__(self, kind: Kind, asked: str | None) -> None:
        """`asked` is the model name to put into the reply; None leaves it as it is."""
        self.facts = Facts()
        self.changes = asked is not None
        self._kind = kind
        self._asked = asked
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes, now: float) -> bytes:
        if self.facts.unreadable:
            return data
        self._pieces.append(data)
        self._size += len(data)
        if self._size > MAX_READ_BYTES:
            held, self._pieces = self._pieces, []
            self.facts.unreadable = self.facts.answered = True
            return b"".join(held) if self.changes else data
        return b"" if self.changes else data

    def finish(self) -> bytes:
        if self.facts.unreadable:
            self.facts.finished = True
            return b""
        if not self._size:
            self.facts.finished = True
            return b""
        pieces, self._pieces = self._pieces, []
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        read_whole(self._kind, body, self.facts)
        if self._asked is None:
            return b""
        return renamed(body, self._asked) if self.facts.finished and body.lstrip()[:1] == b"{" else body

    def abandon(self) -> bytes:
        return b""


class StreamReader:
    """Server-sent events. Where nothing is to be changed, bytes pass as they came and only a copy is cut."""

    streamed = True

    __slots__ = (
        "_asked",
        "_cutter",
        "_held",
        "_kind",
        "_may_pass",
        "_skips_ordinary",
        "_strips",
        "_value",
        "changes",
        "facts",
    )

    def __init__(self, kind: Kind, asked: str | None, strips_usage: bool) -> None:
        """`strips_usage` takes the usage chunk out again that the client did not ask for."""
        self.facts = Facts()
        self.changes = asked is not None or strips_usage
        self._kind = kind
        self._asked = asked
        self._strips = strips_usage
        self._skips_ordinary = kind is Kind.CHAT or kind is Kind.COMPLETIONS
        self._may_pass = self._skips_ordinary and asked is None
        self._cutter = EventCutter()
        self._value = msgspec.json.encode(asked) if asked is not None else b""
        self._held: bytes | None = None
        """The event with the finish reason, until the next one shows whether anything belongs to it."""

    @property
    def at_boundary(self) -> bool:
        return not self._cutter.is_skipping if self.changes else self._cutter.at_boundary

    def feed(self, data: bytes, now: float) -> bytes:
        facts = self.facts
        # The way of most chunks; comments take the other, or a ping would pass for the latest token.
        if facts.first_token_at is not None and self._may_pass and self._held is None and self._is_passing(data):
            facts.last_token_at = now
            return data
        out: list[bytes] = []
        for event in self._cutter.feed(data):
            self._pass(event, now, out)
        facts.unreadable |= self._cutter.skipped
        return b"".join(out) if self.changes else data

    def _is_passing(self, data: bytes) -> bool:
        return data.startswith(b"data:") and self._cutter.is_plain(data) and is_ordinary(data)

    def finish(self) -> bytes:
        out: list[bytes] = []
        for event in self._cutter.finish():
            self._pass(event, self.facts.last_token_at or 0.0, out)
        self._release(out)
        return b"".join(out) if self.changes else b""

    def abandon(self) -> bytes:
        out: list[bytes] = []
        self._release(out)
        return b"".join(out)

    def _pass(self, event: Event, now: float, out: list[bytes]) -> None:
        """Reads one event and adds what the client gets in its place."""
        chunk: Chunk | None = None
        if event.field_error:
            self.facts.failed = True
        if event.data:
            if self._skips_ordinary and self.facts.first_token_at is not None and is_ordinary(event.data):
                self.facts.last_token_at = now
            else:
                chunk = read_event(self._kind, event.data, self.facts, now)
        if not self.changes:
            return
        if self._strips and chunk is not None and chunk.is_usage_only:
            self._take_timings(event)
            self._release(out)
            return
        self._release(out)
        raw = self._renamed(event) if self._asked is not None else event.raw
        if self._strips and chunk is not None and chunk.finishes:
            self._held = raw
        else:
            out.append(raw)

    def _release(self, out: list[bytes]) -> None:
        if self._held is not None:
            out.append(self._held)
            self._held = None

    def _take_timings(self, usage: Event) -> None:
        """Moves llama.cpp's timings to the event that would have carried them without a usage chunk."""
        if self._held is None or b'"timings"' not in usage.data:
            return
        raw = self._held
        at = raw.rfind(b"}")
        for start, end in splice.value_spans(usage.data, b"timings")[:1]:
            timings = b',"timings":%b' % usage.data[start:end]
            self._held = raw[:at] + timings + raw[at:]

    def _renamed(self, event: Event) -> bytes:
        data, raw = event.data, event.raw
        if b'"model"' not in data or not data.lstrip().startswith(b"{"):
            return raw
        spans = _model_spans(data)
        if len(spans) == 1 and len(event.lines) == 1:
            ((start, end),) = spans
            offset = event.lines[0][1]
            return raw[: start + offset] + self._value + raw[end + offset :]
        return splice.apply(raw, [(*in_raw(event, span), self._value) for span in spans])


Reader = PlainReader | JsonReader | StreamReader


def reader_for(ask: Ask, served_name: str, reply: UpstreamConnection) -> Reader:
    """The reader of a reply whose head is in, from an engine that knows the model by `served_name`."""
    if not 200 <= reply.status < 300 or reply.is_encoded:
        return PlainReader()
    asked = ask.model if served_name != ask.model else None
    if reply.content_type.startswith(b"text/event-stream"):
        return StreamReader(ask.kind, asked, ask.counts_added)
    if b"json" in reply.content_type:
        return JsonReader(ask.kind, asked)
    return PlainReader()


def renamed(body: bytes, asked: str) -> bytes:
    """The JSON object with its model's name set to the one asked for, wherever this API has it."""
    if b'"model"' not in body:
        return body
    value = msgspec.json.encode(asked)
    return splice.apply(body, [(*span, value) for span in _model_spans(body)])


def _model_spans(text: bytes) -> list[splice.Span]:
    """Where the name is; anything but a string is not one."""
    spans = [span for span in splice.value_spans(text, b"model") if text[span[0]] == 0x22]
    if spans or b'"response"' not in text:
        return spans
    # The responses API names the model inside the response that an event is about.
    return [
        (outer + start, outer + end)
        for outer, outer_end in splice.value_spans(text, b"response")
        if text[outer : outer + 1] == b"{"
        for start, end in splice.value_spans(text[outer:outer_end], b"model")
    ]
