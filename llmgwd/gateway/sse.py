"""Server-sent events cut out of a byte stream, whatever the pieces it arrives in."""

import re
from typing import NamedTuple

MAX_EVENT_BYTES = 4 * 1024 * 1024
"""An event that is longer is passed on in pieces and not read."""

# A CR that ends one line may be followed by the LF that belongs to it; two line ends in a row end an event.
_BOUNDARY = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_LINE = re.compile(rb"([^\r\n]*)(\r\n|\n|\r|\Z)")
_KEPT_BYTES = 3
"""As many as a boundary may have behind a piece's end."""
_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event: its bytes as they came, blank line included, and what its data lines say."""

    raw: bytes
    data: bytes
    """The data lines joined by LF; empty for comments."""
    lines: tuple[tuple[int, int], ...]
    """For each data line: where it starts in `data`, and in `raw`."""
    field_error: bool = False
    """Whether there is a line of the non-standard `error` field, by which llama.cpp once told of failures."""


class EventCutter:
    """Feeds on bytes, gives whole events; what is not whole yet waits in `pending`."""

    __slots__ = ("_after_cr", "is_skipping", "pending", "skipped")

    def __init__(self) -> None:
        self.pending = b""
        self.skipped = False
        """Whether an event was too long to be read: the stream's meaning is no longer known in full."""
        self.is_skipping = False
        self._after_cr = False

    @property
    def at_boundary(self) -> bool:
        """Whether everything fed so far ended with a whole event."""
        return not self.pending and not self.is_skipping

    @property
    def is_between_events(self) -> bool:
        """Whether what comes next is a new event, whatever it begins with."""
        return not self.pending and not self.is_skipping and not self._after_cr

    def is_plain(self, data: bytes) -> bool:
        """Whether the data is whole events on its own, so that it may be passed without being cut."""
        return self.is_between_events and data.endswith(b"\n\n")

    def feed(self, data: bytes) -> list[Event]:
        """The events that are whole now. Their `raw`, in order, with `pending` at the end is exactly what was fed."""
        events: list[Event] = []
        if self._after_cr and data:
            self._after_cr = False
            if data[:1] == b"\n":
                # The second half of the line end whose first half ended the last event.
                events.append(Event(b"\n", b"", ()))
                data = data[1:]
        text = self.pending + data
        at = 0
        search_from = max(0, len(self.pending) - _KEPT_BYTES)
        while (found := _BOUNDARY.search(text, search_from)) is not None:
            end = found.end()
            events.append(self._event(text[at:end]))
            at = search_from = end
        self.pending = text[at:]
        if at == len(text) and at and text[-1] == 0x0D:
            self._after_cr = True
        if len(self.pending) > (_KEPT_BYTES if self.is_skipping else MAX_EVENT_BYTES):
            events.append(Event(self.pending[:-_KEPT_BYTES], b"", ()))
            self.pending = self.pending[-_KEPT_BYTES:]
            self.skipped = self.is_skipping = True
        return events

    def finish(self) -> list[Event]:
        """What the stream's end leaves: an event without its blank line, which lenient clients read all the same."""
        text, self.pending = self.pending, b""
        return [self._event(text)] if text else []

    def _event(self, raw: bytes) -> Event:
        if self.is_skipping:
            self.is_skipping = False
            return Event(raw, b"", ())
        if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 and b"\r" not in raw:
            return Event(raw, raw[6:-2], ((0, 6),))
        return _read_lines(raw)


def _read_lines(raw: bytes) -> Event:
    data: list[bytes] = []
    lines: list[tuple[int, int]] = []
    size = 0
    field_error = False
    for match in _LINE.finditer(raw):
        line = match[1]
        start = match.start()
        if start == 0 and line.startswith(_BOM):
            line = line[3:]
            start = 3
        if line.startswith(b"data:"):
            skip = 6 if line[5:6] == b" " else 5
            lines.append((size, start + skip))
            data.append(line[skip:])
            size += len(line) - skip + 1
        elif line == b"data":
            lines.append((size, start + 4))
            data.append(b"")
            size += 1
        elif line.startswith(b"error:"):
            field_error = True
    return Event(raw, b"\n".join(data), tuple(lines), field_error)


def in_raw(event: Event, span: tuple[int, int]) -> tuple[int, int]:
    """A span of `event.data` that lies within one of its lines, as a span of `event.raw`."""
    start, end = span
    at_data, at_raw = max(line for line in event.lines if line[0] <= start)
    return start - at_data + at_raw, end - at_data + at_raw
