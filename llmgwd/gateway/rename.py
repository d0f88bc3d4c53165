"""The name a client asked for, put into replies in place of the one an engine knows itself by."""

import msgspec

from llmgwd.gateway import splice
from llmgwd.gateway.sse import Event, in_raw

_OUTER = (b"response", b"message")


class Renamer:
    """Puts one name in, in one reply.

    The events of a stream differ in little but their text, so what stands before or behind the name in one is sought
    in the next: equal bytes from the start of a JSON document, or up to its end, mean that the name is where it was.
    """

    __slots__ = ("_before", "_before_new", "_behind", "_behind_new", "_value")

    def __init__(self, asked: str) -> None:
        self._value = msgspec.json.encode(asked)
        self._before = self._before_new = self._behind = self._behind_new = b""

    def in_body(self, body: bytes) -> bytes:
        """A JSON object with the name wherever this API has it."""
        if b'"model"' not in body:
            return body
        return splice.apply(body, [(*span, self._value) for span in _model_spans(body)])

    def in_chunk(self, raw: bytes) -> bytes | None:
        """One event of a chat or completion, its data on one line and known to be JSON; None when it must be cut."""
        if raw.count(b'"model"') != 1 or b"\\u00" in raw:
            return None
        if self._before and raw.startswith(self._before):
            return self._before_new + raw[len(self._before) :]
        if self._behind and raw.endswith(self._behind):
            return raw[: -len(self._behind)] + self._behind_new
        return None

    def in_event(self, event: Event) -> bytes:
        data, raw = event.data, event.raw
        if b'"model"' not in data or not data.lstrip().startswith(b"{"):
            return raw
        spans = _model_spans(data)
        if len(spans) != 1 or len(event.lines) != 1:
            return splice.apply(raw, [(*in_raw(event, span), self._value) for span in spans])
        ((start, end),) = spans
        offset = event.lines[0][1]
        self._remember(raw, start + offset, end + offset)
        return raw[: start + offset] + self._value + raw[end + offset :]

    def _remember(self, raw: bytes, start: int, end: int) -> None:
        self._before, self._before_new = raw[:end], raw[:start] + self._value
        self._behind = b""
        comma = raw.rfind(b",", 0, start)
        behind = raw[comma:]
        # The key follows a comma, and what is behind it closes the document and opens nothing.
        if comma >= 0 and behind.startswith(b',"model"') and behind.count(b"}") == 1 and _opens_nothing(behind):
            self._behind, self._behind_new = behind, raw[comma:start] + self._value + raw[end:]


def _opens_nothing(text: bytes) -> bool:
    return b"{" not in text and b"[" not in text and b"]" not in text


def _model_spans(text: bytes) -> list[splice.Span]:
    """Where the name is; anything but a string is not one. Nowhere in what is no JSON object, or too deep a one."""
    try:
        spans = _own_spans(text)
        # Events of the responses and messages APIs name the model inside the object that they are about.
        for key in _OUTER if not spans else ():
            if b'"%b"' % key in text:
                for outer, end in splice.value_spans(text, key):
                    spans += [(outer + a, outer + b) for a, b in _own_spans(text[outer:end])]
    except splice.TooDeepError:
        return []
    return spans


def _own_spans(text: bytes) -> list[splice.Span]:
    if text.lstrip()[:1] != b"{":
        return []
    return [span for span in splice.value_spans(text, b"model") if text[span[0]] == 0x22]
