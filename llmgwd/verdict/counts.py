"""What one arm did with the requests that arrived in one look: counts that add up in any order."""

from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_PER_KEY = 20
"""Requests of one session key that count in an hour: one busy session must not stand for all."""


@dataclass
class ArmCounts:
    """Requests of one arm. Times are in the fine cells of `scale`, as a count by cell."""

    arrived: int = 0
    """Requests sent to the arm by the split. Those that have not ended are `arrived - ended - cancelled`."""
    ended: int = 0
    """Requests with an answer to judge, good or bad."""
    cancelled: int = 0
    """Requests whose client left before the end."""
    bad: int = 0
    """Of `ended`: error, truncated, empty, or rescued by stable."""
    length_limited: int = 0
    degenerate: int = 0
    rejected: int = 0
    keys: int = 0
    """Session keys seen for the first time; a key counts once in each worker that meets it, and anew once forgotten."""
    left_out: int = 0
    """Requests that are in nothing else here: their session had MOST_PER_KEY in this hour."""
    textless: int = 0
    """Of `arrived`: those of a kind whose answers never have text, such as embeddings."""
    ttft: dict[int, int] = field(default_factory=dict)
    """Time to the first token; of a client that left before it, the time it waited."""
    token_time: dict[int, int] = field(default_factory=dict)
    """Seconds per output token after the first."""

    @property
    def running(self) -> int:
        """Requests still under way; never below 0, also when their arrival has not been reported yet."""
        return max(0, self.arrived - self.ended - self.cancelled)

    def add(self, other: "ArmCounts") -> None:
        self.arrived += other.arrived
        self.ended += other.ended
        self.cancelled += other.cancelled
        self.bad += other.bad
        self.length_limited += other.length_limited
        self.degenerate += other.degenerate
        self.rejected += other.rejected
        self.keys += other.keys
        self.left_out += other.left_out
        self.textless += other.textless
        add_cells(self.ttft, other.ttft)
        add_cells(self.token_time, other.token_time)


def add_cells(into: dict[int, int], other: Mapping[int, int]) -> None:
    known = into.get
    for index, count in other.items():
        into[index] = known(index, 0) + count
