"""Edits of JSON text in place: where a member's value is, so that everything around it stays byte for byte."""

import json
import re
from functools import cache

DEEPEST = 100
"""Levels of nesting within a member; one that is deeper is not looked through."""
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SCALAR_MEMBER = re.compile(rb'\s*:\s*("[^"\\]*+(?:\\.[^"\\]*+)*+"|[^,{}\[\]\s"]+)', re.DOTALL)


def _container(levels: int) -> bytes:
    """An object or array of good JSON: as every bracket has its partner, they need not be told apart."""
    within = b"" if levels == 0 else b"|" + _container(levels - 1)
    return rb'[{\[](?:[^{}\[\]"]++|' + _STRING + within + rb")*+[}\]]"


_VALUE = b"(?:" + _STRING + rb'|[^\s,{}\[\]"]++|' + _container(DEEPEST) + b")"
_MEMBER = re.compile(rb"\s*+(" + _STRING + rb")\s*+:\s*+(" + _VALUE + rb")\s*+(?:,|(}))", re.DOTALL)
_EMPTY = re.compile(rb"\s*+\{\s*+(}?)")

Span = tuple[int, int]
Edit = tuple[int, int, bytes]


class TooDeepError(Exception):
    """The object is nested too deeply to be edited, or is none."""


def value_spans(text: bytes, key: bytes) -> list[Span]:
    """Where the values of the object's own members named `key` lie: start and end of each, in order.

    `text` is one JSON object that a decoder accepted. Nested members of that name are not among them.
    Raises TooDeepError.
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


@cache
def _others(key: bytes) -> re.Pattern[bytes]:
    """Members with plain names that are not this one, and the comma behind each: all that need not be looked at."""
    name = rb'(?!"' + re.escape(key) + rb'")"[^"\\]*+"'
    return re.compile(rb"(?:\s*+" + name + rb"\s*+:\s*+" + _VALUE + rb"\s*+,)*+", re.DOTALL)


def _scan(text: bytes, key: bytes) -> list[Span]:
    spans: list[Span] = []
    opening = _EMPTY.match(text)
    if opening is None or opening[1]:
        return spans
    others = _others(key)
    at = opening.end()
    while True:
        skipped = others.match(text, at)
        member = _MEMBER.match(text, skipped.end() if skipped is not None else at)
        if member is None:
            raise TooDeepError
        if _names(member[1], key):
            spans.append(member.span(2))
        if member[3] is not None:
            return spans
        at = member.end()


def _names(quoted: bytes, key: bytes) -> bool:
    """Whether this JSON string, quotes included, is the key."""
    return bool(json.loads(quoted) == key.decode()) if b"\\" in quoted else quoted[1:-1] == key
