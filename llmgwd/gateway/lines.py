"""Requests that wait for a replica: a bounded line for each arm of a model, first come, first served."""

from collections import OrderedDict
from enum import Enum
from itertools import count
from typing import Protocol

from llmgwd.gateway.answers import RefusedError
from llmgwd.protocol.samples import Arm

LineKey = tuple[str, Arm]
"""A model's name and an arm: what stays the same through new tables and revisions."""


class Place(Enum):
    """Where in a line a request belongs."""

    NEW = "new"
    """Behind everyone, if there is room."""
    KEPT = "kept"
    """Behind everyone, and never turned away: it has waited already, under an older table."""
    FIRST = "first"
    """Before everyone: its turn had come, and the replica it got turned out to be none."""


class Waiter(Protocol):
    """A request in a line."""

    @property
    def size_bytes(self) -> int:
        """What it keeps in memory."""

    def can_go(self) -> bool:
        """Whether a replica has room for it now."""

    def go(self) -> None:
        """It is out of the line: its turn has come."""

    def rechoose(self) -> None:
        """It is out of the line, and a new table says where it belongs."""

    def turn_away(self, refusal: RefusedError) -> None:
        """It is out of the line, and there will be no turn."""


class Lines:
    """All lines of a worker. `limit` bounds each, `limit_bytes` what the waiting ones keep in memory together."""

    __slots__ = ("_bytes", "_limit", "_limit_bytes", "_lines", "_numbers", "count")

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._lines: dict[LineKey, OrderedDict[Waiter, int]] = {}
        self._numbers = count()
        self.count = 0
        """How many wait, over all lines."""

    def is_empty(self, key: LineKey) -> bool:
        return key not in self._lines

    def lengths(self) -> dict[LineKey, int]:
        """Of the lines that are not empty."""
        return {key: len(line) for key, line in self._lines.items()}

    def join(self, key: LineKey, waiter: Waiter, place: Place) -> bool:
        """Whether there was room."""
        line = self._lines.get(key)
        if place is Place.NEW and (
            (len(line) if line is not None else 0) >= self._limit or self._bytes + waiter.size_bytes > self._limit_bytes
        ):
            return False
        if line is None:
            line = self._lines[key] = OrderedDict()
        line[waiter] = next(self._numbers)
        if place is Place.FIRST:
            line.move_to_end(waiter, last=False)
            line[waiter] = -1
        self.count += 1
        self._bytes += waiter.size_bytes
        return True

    def leave(self, key: LineKey, waiter: Waiter) -> None:
        line = self._lines[key]
        del line[waiter]
        if not line:
            del self._lines[key]
        self.count -= 1
        self._bytes -= waiter.size_bytes

    def call(self, key: LineKey) -> None:
        """Lets those at the front go, as long as there is room for them."""
        while (line := self._lines.get(key)) is not None:
            first = next(iter(line))
            if not first.can_go():
                return
            self.leave(key, first)
            first.go()

    def dissolve(self) -> list[Waiter]:
        """Everyone, in the order of their coming; nobody waits any more."""
        waiting = sorted((number, index, waiter) for index, (waiter, number) in enumerate(self._everyone()))
        self._lines.clear()
        self.count = self._bytes = 0
        return [waiter for _, _, waiter in waiting]

    def _everyone(self) -> list[tuple[Waiter, int]]:
        return [entry for line in self._lines.values() for entry in line.items()]
