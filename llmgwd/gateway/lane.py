"""The short way of a stream's ordinary chunks: known by what surrounds their text, and passed on without being read.

The chunks of one stream are the same JSON document over and over, but for the text in it. A chunk that was read in full
shows what stands before and behind its text. One that has the same around another plain text says the same, so neither
the HTTP parser nor the JSON decoder need see it.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from llmgwd.gateway.health import Health
from llmgwd.gateway.meter import Chunk, Facts

_MOST_DIGITS = 3
"""Longer chunks, and sizes written in other ways, are read in full."""
_NEVER = b"\n"
"""What no chunk begins with."""


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


class Lane:
    """From one engine's connection to one client, while both sides' bodies are chunked."""

    __slots__ = (
        "_behind",
        "_facts",
        "_hear",
        "_mould",
        "_openings",
        "_renames",
        "_write",
        "has_moved",
    )

    def __init__(self, write: Callable[[bytes], None], facts: Facts, health: Health) -> None:
        self._write = write
        self._facts = facts
        self._hear = health.hear_plain
        self._mould: Mould | None = None
        self._behind = b""
        self._openings: dict[int, bytes] = {}
        """By a chunk's length on the wire: its size line, and what stands before the text."""
        self._renames = False
        self.has_moved = False
        """Whether anything was carried since this was last set to false."""

    def fit(self, mould: Mould) -> None:
        """From here on carries what this mould fits."""
        if mould is not self._mould:
            self._mould = mould
            self._behind = mould.behind + b"\r\n"
            self._openings = {}
            self._renames = mould.before != mould.before_out or mould.behind != mould.behind_out

    def carry(self, data: bytes) -> bool:
        """Passes on one whole HTTP chunk that holds one event of the mould; False, and nothing done, for all else."""
        opening = self._openings.get(len(data))
        if opening is None:
            opening = self._learn_opening(len(data))
        if not data.startswith(opening) or not data.endswith(self._behind):
            return False
        said = data[len(opening) : -len(self._behind)]
        try:
            text = said.decode()
        except UnicodeDecodeError:
            return False
        if not text or not text.isprintable() or '"' in text or "\\" in text:
            return False
        self._facts.last_token_at = time.monotonic()
        self._hear(said)
        self.has_moved = True
        if self._renames:
            assert self._mould is not None
            event = b"%b%b%b" % (self._mould.before_out, said, self._mould.behind_out)
            data = b"%x\r\n%b\r\n" % (len(event), event)
        self._write(data)
        return True

    def _learn_opening(self, length: int) -> bytes:
        """How a chunk of this length begins, if it is of the mould: the length leaves one size only."""
        assert self._mould is not None
        for digits in range(1, _MOST_DIGITS + 1):
            line = b"%x\r\n" % max(0, length - digits - 4)
            if len(line) == digits + 2 and length < 16**_MOST_DIGITS:
                self._openings[length] = line + self._mould.before
                return self._openings[length]
        return _NEVER
