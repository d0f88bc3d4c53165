"""The shipped judge on a stream, fed as workers feed it: counts by arrival look, looked at on the tick and after every
failed canary answer."""

from collections import Counter
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np

from bench.verdict.streams import Scenario, Stream
from llmgwd.verdict.counts import ArmCounts
from llmgwd.verdict.decision import State, decide
from llmgwd.verdict.evidence import LOOK_S, add_canary, add_stable, begin, ripe
from llmgwd.verdict.guard import Guard
from llmgwd.verdict.settle import settle

UNFED = {"length_limited": None, "degenerate": None, "rejected": None}
"""The streams know no such answers: every method is held to the same three limits."""


@dataclass(frozen=True)
class Outcome:
    """`decision` is rollback, promote or continue, taken at `at_s`."""

    decision: str
    at_s: float


def judged(stream: Stream, scenario: Scenario) -> Outcome:
    """Plays the stream until a decision. A promotion before the scenario's change is right and ends nothing."""
    evidence = begin(UNFED)
    end_s = scenario.hours * 3600.0
    failures = stream.known_s[stream.canary & ~stream.ok]
    ticks = np.unique(np.concatenate([np.arange(LOOK_S, end_s + 1e-6, LOOK_S), failures[failures < end_s]]))
    share = scenario.share * scenario.told
    promoted_early = False
    for now_s, batch in zip(ticks.tolist(), _batches(stream, ticks), strict=True):
        for canary, look, counts in batch:
            (add_canary if canary else add_stable)(evidence, look, share, counts)
        settle(evidence, ripe(evidence, now_s), int(np.ceil(now_s / LOOK_S)) - 1)
        decision = decide(evidence, now_s)
        if decision.state is State.WORSE:
            return Outcome("rollback", now_s)
        if decision.state is State.FINE and not promoted_early:
            if now_s > scenario.change_h * 3600.0:
                return Outcome("promote", now_s)
            promoted_early = True
    return Outcome("continue", end_s)


def judged_bare(stream: Stream, scenario: Scenario) -> Outcome:
    """As it would be with requests belonging to the look in which they ended, and every replica taken to be steady."""
    with mock.patch.object(Guard, "overstated", 1.0):
        return judged(replace(stream, arrived_s=stream.known_s), scenario)


def _batches(stream: Stream, ticks: np.ndarray) -> list[list[tuple[bool, int, ArmCounts]]]:
    """What is handed in at each tick: arrivals of the looks that are over, and requests that ended, by arm and look."""
    batches: list[list[tuple[bool, int, ArmCounts]]] = [[] for _ in ticks]
    looks = (stream.arrived_s // LOOK_S).astype(np.int64)
    for canary in (False, True):
        mine = np.flatnonzero(stream.canary == canary)
        arrivals = np.bincount(looks[mine])
        over = np.searchsorted(ticks, (np.arange(len(arrivals)) + 1) * LOOK_S)
        for look in np.flatnonzero(arrivals).tolist():
            if over[look] < len(ticks):
                batches[over[look]].append((canary, look, ArmCounts(arrived=int(arrivals[look]))))
        tick = np.searchsorted(ticks, stream.known_s[mine])
        mine, tick = mine[tick < len(ticks)], tick[tick < len(ticks)]
        order = np.lexsort((~stream.ok[mine], looks[mine], tick))
        mine, tick = mine[order], tick[order]
        look_of, ok = looks[mine], stream.ok[mine]
        starts = np.flatnonzero(np.r_[True, (np.diff(tick) != 0) | (np.diff(look_of) != 0)]) if len(mine) else mine
        good = np.add.reduceat(ok.astype(np.int64), starts).tolist() if len(mine) else []
        ttft, token = stream.ttft_cell[mine].tolist(), stream.token_cell[mine].tolist()
        for start, stop, fine in zip(starts.tolist(), [*starts[1:].tolist(), len(mine)], good, strict=True):
            counts = ArmCounts(
                ended=stop - start,
                bad=stop - start - fine,
                ttft=dict(Counter(ttft[start : start + fine])),
                token_time=dict(Counter(token[start : start + fine])),
            )
            batches[tick[start]].append((canary, int(look_of[start]), counts))
    return batches
