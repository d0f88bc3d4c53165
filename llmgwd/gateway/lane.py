"""The short way of a stream's ordinary chunks: known by what surrounds their text, and passed on without being read.

The chunks of one stream are the same JSON document over and over, but for the text in it. A chunk that was read in full
shows what stands before and behind its text. One that has the same around another plain text says the same, so neither
the HTTP parser nor the JSON decoder need see it.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from llmgwd.gateway.health import MOST_TAIL_BYTES, Health
from llmgwd.gateway.meter import Chunk, Facts

_MOST_DIGITS = 3
"""Longer chunks, and sizes written in other ways, are read in full."""
_NEVER = b"no chunk"
"""What no chunk begins or ends with."""


_SHORT_BYTES = 16
_MOST_PLAIN = 32_768
_plain: set[bytes] = set()
"""Tokens found plain before: a vocabulary is small, and most of what is said was said already."""


class Mould(NamedTuple):
    """What surrounds the text in an event of the stream, and in the event that the client gets in its place."""

    before: bytes
    behind: bytes
    before_out: bytes
    behind_out: bytes


def mould_of(event: bytes, out: bytes, chunk: Chunk) -> Mould | None:
    """The mould of an ordinary chunk that was read from `event` and given out as `out`; None when it has none.

    Without a backslash a JSON string stands for itself, so the text's only occurrence in quotes is where it is.
    """
    choices = chunk.choices
    if choices is None or len(choices) != 1 or b"\\" in event:
        return None
    (choice,) = choices
    said = choice.delta or choice.message
    text = choice.text if said is None else said.content
    if text.__class__ is not str or not text or (said is not None and said.tool_calls is not None):
        return None
    quoted = b'"%b"' % text.encode()
    if event.count(quoted) != 1 or out.count(quoted) != 1:
        return None
    at, at_out, behind = event.find(quoted) + 1, out.find(quoted) + 1, len(quoted) - 1
    return Mould(event[:at], event[at + behind - 1 :], out[:at_out], out[at_out + behind - 1 :])


class Lane(asyncio.Protocol):
    """From one engine's connection to one client, while both sides' bodies are chunked.

    It stands before the connection's own protocol, and hands on to that whatever it does not carry itself. All that a
    token costs is in one function: what is spread over several costs as much as parsing.
    """

    __slots__ = ("_behind", "_facts", "_health", "_mould", "_next", "_openings", "_renames", "_tail", "_write")

    def __init__(
        self, following: asyncio.Protocol, write: Callable[[bytes], None], facts: Facts, health: Health
    ) -> None:
        self._next = following
        self._write = write
        self._facts = facts
        self._health = health
        self._tail = health.tail
        self._mould: Mould | None = None
        self._behind = _NEVER
        self._openings: dict[int, bytes] = {}
        """By a chunk's length on the wire: its size line, and what stands before the text."""
        self._renames = False

    def fit(self, mould: Mould | None) -> None:
        """From here on carries what this mould fits; nothing, when it is None."""
        if mould is None:
            self._mould, self._behind = None, _NEVER
        elif mould is not self._mould:
            self._mould, self._behind = mould, mould.behind + b"\r\n"
            self._openings = {}
            self._renames = mould.before != mould.before_out or mould.behind != mould.behind_out

    def data_received(self, data: bytes) -> None:
        """Carries one whole HTTP chunk that holds one event of the mould."""
        behind = self._behind
        opening = self._openings.get(len(data)) or self._learn_opening(len(data))
        said = data[len(opening) : -len(behind)]
        if (
            not said
            or not data.startswith(opening)
            or not data.endswith(behind)
            or (said not in _plain and not _is_plain(said))
        ):
            if not self._carry_several(data):
                self._next.data_received(data)
            return
        self._facts.last_token_at = time.monotonic()
        tail = self._tail
        tail += said
        if len(tail) > MOST_TAIL_BYTES:
            self._health.trim()
        self._write(self._renamed(said) if self._renames else data)

    def _carry_several(self, data: bytes) -> bool:
        """Carries whole chunks of the mould that came at once, as they do from an engine that is faster than this."""
        if self._mould is None:
            return False
        texts: list[bytes] = []
        at = 0
        while at < len(data):
            line_end = data.find(b"\r\n", at, at + _MOST_DIGITS + 2)
            if line_end < 0 or not data[at:line_end].isalnum():
                return False
            try:
                end = line_end + 4 + int(data[at:line_end], 16)
            except ValueError:
                return False
            opening = self._openings.get(end - at) or self._learn_opening(end - at)
            text = data[at + len(opening) : end - len(self._behind)]
            if (
                end > len(data)
                or not text
                or not data.startswith(opening, at)
                or not data.endswith(self._behind, at, end)
                or not _is_plain(text)
            ):
                return False
            texts.append(text)
            at = end
        if not texts:
            return False
        self._facts.last_token_at = time.monotonic()
        self._tail += b"".join(texts)
        if len(self._tail) > MOST_TAIL_BYTES:
            self._health.trim()
        self._write(b"".join([self._renamed(text) for text in texts]) if self._renames else data)
        return True

    def eof_received(self) -> bool | None:
        return self._next.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._next.connection_lost(exc)

    def _renamed(self, said: bytes) -> bytes:
        assert self._mould is not None
        event = b"%b%b%b" % (self._mould.before_out, said, self._mould.behind_out)
        return b"%x\r\n%b\r\n" % (len(event), event)

    def _learn_opening(self, length: int) -> bytes:
        """How a chunk of this length begins, if it is of the mould: the length leaves one size only."""
        if self._mould is None:
            return _NEVER
        for digits in range(1, _MOST_DIGITS + 1):
            line = b"%x\r\n" % max(0, length - digits - 4)
            if len(line) == digits + 2:
                self._openings[length] = line + self._mould.before
                return self._openings[length]
        return _NEVER


def _is_plain(text: bytes) -> bool:
    """Whether JSON has it in a string as it is, and an event in a line."""
    try:
        said = text.decode()
    except UnicodeDecodeError:
        return False
    is_plain = said.isprintable() and '"' not in said and "\\" not in said
    if is_plain and len(text) <= _SHORT_BYTES:
        if len(_plain) >= _MOST_PLAIN:
            _plain.clear()
        _plain.add(text)
    return is_plain
