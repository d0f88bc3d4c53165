"""A reply's body on its way to the client: read for the count, changed only where the gateway itself is the cause."""

from llmgwd.gateway import splice
from llmgwd.gateway.ask import COUNTED_STREAMS, Ask, Kind
from llmgwd.gateway.health import Health
from llmgwd.gateway.lane import Mould, mould_of
from llmgwd.gateway.meter import Chunk, Facts, ordinary_chunk, read_chunk, read_event, read_whole
from llmgwd.gateway.rename import Renamer
from llmgwd.gateway.sse import Event, EventCutter
from llmgwd.gateway.upstream import UpstreamConnection

_SPEAKING = frozenset((Kind.CHAT, Kind.COMPLETIONS, Kind.RESPONSES))
_LINES = frozenset((b"application/x-ndjson", b"application/jsonl", b"application/jsonlines"))
MAX_LINE_BYTES = 1024 * 1024
"""A line that is longer passes as it is."""
MAX_READ_BYTES = 16 * 1024 * 1024
"""A JSON body that is longer passes unread."""


class PlainReader:
    """Bytes whose meaning is not known here: error bodies, audio, anything compressed."""

    streamed = False
    changes = False
    """Whether the bytes may leave in another number than they came in."""
    at_boundary = False
    """Whether an event of the gateway's own could follow what was given out so far."""
    mould: Mould | None = None
    """What the next chunk may be carried by, without being read; None when it has to be read."""

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


class LinesReader:
    """JSON documents, one a line, as some engines stream them on paths of their own; only the name is put back."""

    streamed = False
    changes = True
    at_boundary = False
    mould: Mould | None = None

    __slots__ = ("_pending", "_renamer", "facts")

    def __init__(self, renamer: Renamer) -> None:
        self.facts = Facts()
        self._renamer = renamer
        self._pending = b""

    def feed(self, data: bytes, now: float) -> bytes:
        self.facts.answered = True
        *lines, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > MAX_LINE_BYTES:
            lines.append(self._pending)
            self._pending = b""
            return b"\n".join(lines)
        return b"".join(self._renamer.in_body(line) + b"\n" for line in lines)

    def finish(self) -> bytes:
        self.facts.finished = True
        return self._renamer.in_body(self._pending)

    def abandon(self) -> bytes:
        return b""


class JsonReader:
    """One JSON document. With a name to put back it is held until it is whole."""

    streamed = False
    at_boundary = False
    mould: Mould | None = None

    __slots__ = ("_kind", "_pieces", "_renamer", "_size", "changes", "facts")

    def __init__(self, kind: Kind, renamer: Renamer | None, health: Health | None = None) -> None:
        """Without a renamer the model's name is left as it is."""
        self.facts = Facts(health)
        self.changes = renamer is not None
        self._kind = kind
        self._renamer = renamer
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
        if self._renamer is None:
            return b""
        return self._renamer.in_body(body) if self.facts.finished and body.lstrip()[:1] == b"{" else body

    def abandon(self) -> bytes:
        return b""


class StreamReader:
    """Server-sent events. Where nothing is to be changed, bytes pass as they came and only a copy is cut."""

    streamed = True

    __slots__ = ("_cutter", "_held", "_kind", "_may_pass", "_renamer", "_strips", "changes", "facts", "mould")

    def __init__(self, kind: Kind, renamer: Renamer | None, strips_usage: bool, health: Health | None = None) -> None:
        """`strips_usage` takes the usage chunk out again that the client did not ask for."""
        self.facts = Facts(health)
        self.changes = renamer is not None or strips_usage
        self._kind = kind
        self._renamer = renamer
        self._strips = strips_usage
        self._may_pass = kind in COUNTED_STREAMS
        self._cutter = EventCutter()
        self._held: bytes | None = None
        """The event with the finish reason, until the next one shows whether anything belongs to it."""
        self.mould: Mould | None = None

    @property
    def at_boundary(self) -> bool:
        return not self._cutter.is_skipping if self.changes else self._cutter.at_boundary

    def feed(self, data: bytes, now: float) -> bytes:
        if self._may_pass and self._held is None:
            passed = self._pass_plain(data, now)
            if passed is not None:
                return passed
        out: list[bytes] = []
        for event in self._cutter.feed(data):
            self._pass(event, now, out)
        if self._held is not None or not self._cutter.is_between_events:
            self.mould = None
        self.facts.unreadable |= self._cutter.skipped
        return b"".join(out) if self.changes else data

    def _pass_plain(self, data: bytes, now: float) -> bytes | None:
        """The way of most: whole events that say nothing but more tokens, in the plainest form. None: not this way."""
        if not data.startswith(b"data: ") or not self._cutter.is_plain(data) or b"\r" in data:
            return None
        if data.find(b"\n") == len(data) - 2:
            chunk = ordinary_chunk(data[6:-2])
            if chunk is None:
                return None
            out = data if self._renamer is None else self._renamer.in_chunk(data)
            if out is not None:
                read_chunk(chunk, self.facts, now)
                self.mould = mould_of(data, out, chunk) or self.mould
            return out
        return self._pass_several(data, now)

    def _pass_several(self, data: bytes, now: float) -> bytes | None:
        chunks: list[Chunk] = []
        out: list[bytes] = []
        for line in data[:-2].split(b"\n\n"):
            chunk = ordinary_chunk(line[6:]) if line.startswith(b"data: ") and b"\n" not in line else None
            if chunk is None:
                return None
            chunks.append(chunk)
            if self._renamer is not None:
                renamed = self._renamer.in_chunk(line + b"\n\n")
                if renamed is None:
                    return None
                out.append(renamed)
        for chunk in chunks:
            read_chunk(chunk, self.facts, now)
        return data if self._renamer is None else b"".join(out)

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
            chunk = read_event(self._kind, event.data, self.facts, now)
        if not self.changes:
            return
        if self._strips and chunk is not None and chunk.is_usage_only:
            self._take_timings(event)
            self._release(out)
            return
        self._release(out)
        raw = self._renamer.in_event(event) if self._renamer is not None else event.raw
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
        try:
            spans = splice.value_spans(usage.data, b"timings")
        except splice.TooDeepError:
            return
        for start, end in spans[:1]:
            timings = b',"timings":%b' % usage.data[start:end]
            self._held = raw[:at] + timings + raw[at:]


Reader = PlainReader | LinesReader | JsonReader | StreamReader


def reader_for(ask: Ask, served_name: str, reply: UpstreamConnection) -> Reader:
    """The reader of a reply whose head is in, from an engine that knows the model by `served_name`."""
    head = reply.head
    assert head is not None
    if not 200 <= head.status < 300 or head.is_encoded:
        return PlainReader()
    renamer = Renamer(ask.model) if served_name != ask.model else None
    health = Health(asks_json=ask.asks_json) if ask.kind in _SPEAKING else None
    if head.content_type.startswith(b"text/event-stream"):
        return StreamReader(ask.kind, renamer, ask.counts_added, health)
    media_type = head.content_type.partition(b";")[0].strip()
    if media_type == b"application/json" or media_type.endswith(b"+json"):
        return JsonReader(ask.kind, renamer, health)
    if renamer is not None and media_type in _LINES:
        return LinesReader(renamer)
    return PlainReader()
