"""How busy each arm of a model with a canary was, look by look: what its times were measured at."""

import time
from typing import TYPE_CHECKING

from llmgwd.protocol.samples import Arm, LoadSample

if TYPE_CHECKING:
    from llmgwd.gateway.table import Table

LoadKey = tuple[str, Arm, int]
"""Canary's id, arm, look."""


class Loads:
    """Adds up what the replicas went through; `take` hands over all of it and starts anew."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: dict[LoadKey, tuple[float, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._sums)

    def measure(self, table: "Table") -> None:
        """Books what went on since the last measure on the look of now: to be called often, to be told apart finely."""
        now, wall = time.monotonic(), time.time()
        for replica in table.replicas:
            held_s, busy_s = replica.take_load(now)
            if not held_s:
                continue
            for arm in table.arms_of[replica]:
                if arm.look_s is not None:
                    key = (arm.key[3], arm.arm, int(wall // arm.look_s))
                    held, busy = self._sums.get(key, (0.0, 0.0))
                    self._sums[key] = (held + held_s, busy + busy_s)

    def take(self) -> tuple[LoadSample, ...]:
        sums, self._sums = self._sums, {}
        return tuple(LoadSample(*key, held_s=held, busy_s=busy) for key, (held, busy) in sums.items())
