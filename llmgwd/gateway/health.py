"""Whether an answer is in good shape: does it run in circles, is it the JSON that was asked for. Text stays in here."""

import zlib
from typing import Any

import msgspec

from llmgwd.gateway.json_reading import UNREADABLE

WINDOW_BYTES = 2048
"""How much of an answer's end is looked at for repetition."""
MOST_TAIL_BYTES = 4 * WINDOW_BYTES
LEAST_BYTES = 1024
"""A shorter answer has not had the room to run in circles."""
LEAST_RATIO = 0.08
"""Compressed size by size, at zlib's level 1, below which an answer repeats itself.

Measured: of 11,667 windows of 2,048 bytes cut at random from Python, C, JSON, HTML, shell and prose none is below (the
lowest are 0.094 in prose, 0.101 in JSON, 0.114 in code), nor of 14,583 of 1,024 bytes (lowest 0.120). A sentence of 120
characters said over and over comes to 0.055, one of 60 to 0.042, one of 20 to 0.024.
"""
MOST_KEPT_BYTES = 64 * 1024
"""Of what should be JSON; what is longer is not checked."""

_check = msgspec.json.Decoder(msgspec.Raw).decode


class Health:
    """What is heard of one answer, in bounded memory."""

    __slots__ = ("_documents", "_has_several", "_is_degenerate", "_kept_bytes", "asks_json", "tail")

    def __init__(self, *, asks_json: bool) -> None:
        self.asks_json = asks_json
        self.tail = bytearray()
        """The end of what was heard, in UTF-8; whoever adds to it trims it past MOST_TAIL_BYTES."""
        self._is_degenerate: bool | None = None
        """Told once, and asked for by every count."""
        self._has_several = False
        self._documents: dict[tuple[int, int], bytearray] | None = None
        self._kept_bytes = 0

    def answer(self, choice: Any, text: str) -> None:
        """A piece of the answer itself; `choice` is its choice's index as the engine gave it."""
        if self.asks_json:
            self.keep(choice, -1, text)
        else:
            self.hear(choice, text)

    def hear(self, choice: Any, text: str) -> None:
        """A piece of anything that could run in circles."""
        if choice:
            # Several answers to one question are alike, and interleaved in a stream: nothing is told from them.
            self._has_several = True
        self.tail += text.encode("utf-8", "surrogatepass")
        if len(self.tail) > MOST_TAIL_BYTES:
            self.trim()

    def trim(self) -> None:
        """Forgets all but the last of what was heard."""
        del self.tail[:-WINDOW_BYTES]

    def check(self, number: int, text: str) -> None:
        """A piece of the answer that is heard by other ways; `number` tells its documents apart."""
        if self.asks_json:
            self.keep(0, number, text)

    def keep(self, choice: Any, part: int, text: str) -> None:
        """A piece of what has to be JSON: of a choice the tool call of this number, or -1 for the answer itself."""
        piece = text.encode("utf-8", "surrogatepass")
        self._kept_bytes += len(piece)
        if self._kept_bytes > MOST_KEPT_BYTES:
            self._documents = None
            return
        if self._documents is None:
            self._documents = {}
        key = (choice if isinstance(choice, int) else 0, part)
        self._documents.setdefault(key, bytearray()).extend(piece)

    def is_degenerate(self, *, length_limited: bool) -> bool:
        """Whether the whole answer is in bad shape. JSON cut off at the length limit is not held against it."""
        if self._is_degenerate is None:
            if self.asks_json or self._documents is not None:
                self._is_degenerate = not length_limited and self._is_broken()
            else:
                self._is_degenerate = self._repeats()
        return self._is_degenerate

    def _repeats(self) -> bool:
        if self._has_several or len(self.tail) < LEAST_BYTES:
            return False
        window = self.tail[-WINDOW_BYTES:]
        return len(zlib.compress(window, 1)) < LEAST_RATIO * len(window)

    def _is_broken(self) -> bool:
        for document in (self._documents or {}).values():
            try:
                _check(document)
            except UNREADABLE:
                return True
        return False
