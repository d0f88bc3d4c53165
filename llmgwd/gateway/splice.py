"""Edits of JSON text in place: where a member's value is, so that everything around it stays byte for byte."""

import json
import re

_TOKEN = re.compile(rb'[{}\[\],:]|"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_VALUE_START = re.compile(rb"[ \t\r\n]*")
_SCALAR_MEMBER = re.compile(rb'\s*:\s*("[^"\\]*+(?:\\.[^"\\]*+)*+"|[^,{}\[\]\s"]+)', re.DOTALL)

Span = tuple[int, int]
Edit = tuple[int, int, bytes]


def value_spans(text: bytes, key: bytes) -> list[Span]:
    """Where the values of the object's own members named `key` lie: start and end of each, in order.

    `text` is one JSON object that a decoder accepted. Nested members of that name are not among them.
    """
    quick = _quick_span(text, key)
    return [quick] if quick is not None else _scan(text, key)


def apply(text: bytes, edits: list[Edit]) -> bytes:
    """The text with each (start, end, replacement) made; spans do not overlap."""
    pieces: list[bytes] = []
    at = 0
    for start, end, replacement in sorted(edits):
        pieces.append(text[at:start])
        pieces.append(replacement)
        at = end
    pieces.append(text[at:])
    return b"".join(pieces)


def _quick_span(text: bytes, key: bytes) -> Span | None:
    """The span of a scalar value, when it can be told without a scan that the one member so named is at the top."""
    quoted = b'"%b"' % key
    before = text.find(quoted)
    # An escape sequence could spell the key a second time: then only a scan is certain.
    if before < 1 or text[before - 1] == 0x5C or text.rfind(quoted) != before or b"\\u00" in text:
        return None
    value = _SCALAR_MEMBER.match(text, before + len(quoted))
    if value is None:
        return None
    opens_before = text.count(b"{", 0, before) == 1 and text.count(b"[", 0, before) == 0
    if opens_before or _closes_after(text, value.end()):
        return value.span(1)
    return None


def _closes_after(text: bytes, end: int) -> bool:
    """Whether what follows has no bracket but the object's own last one."""
    return (
        text.count(b"}", end) == 1
        and text.count(b"]", end) == 0
        and text.count(b"{", end) == 0
        and text.count(b"[", end) == 0
    )


def _scan(text: bytes, key: bytes) -> list[Span]:
    spans: list[Span] = []
    depth = 0
    last_string: Span | None = None
    opened: int | None = None
    for token in _TOKEN.finditer(text):
        kind = text[token.start()]
        if kind == 0x22:
            last_string = token.span()
        elif kind in b"{[":
            depth += 1
        elif kind in b"}]" or kind == 0x2C:
            if opened is not None and depth == 1:
                spans.append((opened, _trimmed(text, opened, token.start())))
                opened = None
            if kind != 0x2C:
                depth -= 1
        elif depth == 1 and opened is None and last_string is not None and _names(text, last_string, key):
            opened = _value_start(text, token.end())
    return spans


def _names(text: bytes, string: Span, key: bytes) -> bool:
    raw = text[string[0] : string[1]]
    if b"\\" in raw:
        return bool(json.loads(raw) == key.decode())
    return raw[1:-1] == key


def _value_start(text: bytes, at: int) -> int:
    match = _VALUE_START.match(text, at)
    assert match is not None
    return match.end()


def _trimmed(text: bytes, start: int, end: int) -> int:
    return start + len(text[start:end].rstrip(b" \t\r\n"))
