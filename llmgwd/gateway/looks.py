"""What the verdict is made of: what became of the requests that arrived in one look, by arm and share."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from llmgwd.gateway.meter import Facts
from llmgwd.protocol.samples import Arm, LookSample, Outcome
from llmgwd.verdict.counts import MOST_PER_KEY
from llmgwd.verdict.scale import cell

if TYPE_CHECKING:
    from llmgwd.gateway.table import ModelEntry

BAD = frozenset((Outcome.ERROR, Outcome.TRUNCATED, Outcome.EMPTY))
MOST_KEYS = 20_000
"""Session keys remembered of a canary; with more, the one whose hour began first is forgotten."""
HOUR_S = 3600


class LookKey(NamedTuple):
    canary: str
    arm: Arm
    look: int
    share: float


class _Counts:
    __slots__ = (
        "arrived",
        "bad",
        "cancelled",
        "degenerate",
        "ended",
        "keys",
        "left_out",
        "length_limited",
        "rejected",
        "textless",
        "token_time",
        "ttft",
    )

    def __init__(self) -> None:
        self.arrived = self.ended = self.cancelled = self.bad = 0
        self.length_limited = self.degenerate = self.rejected = self.keys = self.left_out = self.textless = 0
        self.ttft: dict[int, int] = {}
        self.token_time: dict[int, int] = {}

    def sample(self, key: LookKey) -> LookSample:
        return LookSample(*key, **{name: getattr(self, name) for name in self.__slots__})


class _Sessions:
    """How often each session key of a canary has asked in its present hour; the one renewed longest ago comes first."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: dict[bytes, tuple[int, int]] = {}

    def take(self, session: bytes, hour: int) -> int:
        """Notes a request; how many came before it in this hour, or -1 for a key that is not known."""
        known = self._asked.get(session)
        if known is not None and known[0] == hour:
            if known[1] < MOST_PER_KEY:
                self._asked[session] = (hour, known[1] + 1)
            return known[1]
        self._asked.pop(session, None)
        if len(self._asked) >= MOST_KEYS:
            del self._asked[next(iter(self._asked))]
        self._asked[session] = (hour, 1)
        return -1 if known is None else 0


class Looks:
    """Takes each request twice, when it comes and when it ends; `take` hands over all of it and starts anew."""

    __slots__ = ("_clock", "_counts", "_sessions")

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._counts: dict[LookKey, _Counts] = {}
        self._sessions: dict[str, _Sessions] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def take(self) -> tuple[LookSample, ...]:
        counts, self._counts = self._counts, {}
        return tuple(each.sample(key) for key, each in counts.items())

    def keep_only(self, canaries: frozenset[str]) -> None:
        """Forgets the sessions of canaries that are not in the table any more."""
        self._sessions = {canary: keys for canary, keys in self._sessions.items() if canary in canaries}

    def arrived(self, model: "ModelEntry", arm: Arm, session: bytes, *, textless: bool) -> LookKey | None:
        """A request that the split sent to `arm`. None: it is not to be counted, and not to be told of again.

        textless: by its kind no answer to it has text.
        """
        canary, now = model.canary_id, self._clock()
        key = LookKey(canary, arm, int(now // model.look_s), model.share)
        counts = self._of(key)
        if session:
            sessions = self._sessions.get(canary)
            if sessions is None:
                sessions = self._sessions[canary] = _Sessions()
            before = sessions.take(session, int(now // HOUR_S))
            if before >= MOST_PER_KEY:
                counts.left_out += 1
                return None
            counts.keys += before < 0
        counts.arrived += 1
        counts.textless += textless
        return key

    def left(self, key: LookKey, waited_s: float | None) -> None:
        """It came to no answer of this arm; `waited_s` is how long its client waited for a first token, if it did."""
        counts = self._of(key)
        counts.cancelled += 1
        if waited_s is not None:
            _count(counts.ttft, waited_s)

    def ended(
        self, key: LookKey, outcome: Outcome, facts: Facts | None, ttft_s: float | None, token_time_s: float | None
    ) -> None:
        counts = self._of(key)
        counts.ended += 1
        counts.bad += outcome in BAD
        counts.rejected += outcome is Outcome.REJECTED
        if outcome is Outcome.OK and facts is not None:
            counts.length_limited += facts.length_limited
            if facts.health is not None:
                counts.degenerate += facts.health.is_degenerate(length_limited=facts.length_limited)
        if ttft_s is not None:
            _count(counts.ttft, ttft_s)
        if token_time_s is not None:
            _count(counts.token_time, token_time_s)

    def _of(self, key: LookKey) -> _Counts:
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = _Counts()
        return counts


def _count(histogram: dict[int, int], value_s: float) -> None:
    index = cell(value_s)
    histogram[index] = histogram.get(index, 0) + 1
