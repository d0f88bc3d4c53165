"""What happened since the last report, added up by arm; its size depends on the number of arms, not of requests."""

import time
from typing import TYPE_CHECKING

from llmgwd.gateway.ask import Ask, Kind
from llmgwd.gateway.looks import LookKey, Looks
from llmgwd.gateway.meter import Facts
from llmgwd.protocol.samples import Arm, ArmSample, Outcome
from llmgwd.verdict.sketch import bucket

if TYPE_CHECKING:
    from llmgwd.gateway.routing import Cause, Choice
    from llmgwd.gateway.table import ArmEntry

ArmKey = tuple[str, Arm, str, str, bool]
"""Model, arm, revision, canary's id, and whether it is for requests that are in no comparison of the arms."""


class Times:
    """When one request came to what, by the monotonic clock."""

    __slots__ = ("came_at", "look", "streams", "waited_s", "waits_since", "was_paused")

    def __init__(self) -> None:
        self.look: LookKey | None = None
        """The look that it is counted in, until what became of it is."""
        self.streams = False
        self.came_at = 0.0
        self.waits_since: float | None = None
        self.waited_s: float | None = None
        """In lines; None when it never stood in one."""
        self.was_paused = False
        """Whether the client read more slowly than the engine wrote: then the engine's pace is not known."""

    def start(self) -> None:
        self.came_at = time.monotonic()
        self.waited_s = None

    def wait(self) -> None:
        self.waits_since = time.monotonic()

    def go(self) -> None:
        """The wait is over, for now at least."""
        if self.waits_since is not None:
            self.waited_s = (self.waited_s or 0.0) + time.monotonic() - self.waits_since
            self.waits_since = None


class _Tally:
    """One arm's running counts."""

    __slots__ = (
        "completion_sizes",
        "completion_tokens",
        "degenerate",
        "duration",
        "fell_back",
        "forced",
        "length_limited",
        "outcomes",
        "prompt_sizes",
        "prompt_tokens",
        "rescued",
        "stood_in",
        "token_time",
        "ttft",
        "turned_away",
        "waited",
    )

    def __init__(self) -> None:
        self.outcomes: dict[Outcome, int] = {}
        self.forced = 0
        self.rescued = 0
        self.stood_in = 0
        self.turned_away = 0
        self.fell_back = 0
        self.length_limited = 0
        self.degenerate = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.prompt_sizes: dict[int, int] = {}
        self.completion_sizes: dict[int, int] = {}
        self.ttft: dict[int, int] = {}
        self.token_time: dict[int, int] = {}
        self.duration: dict[int, int] = {}
        self.waited: dict[int, int] = {}

    def sample(self, key: ArmKey) -> ArmSample:
        model, arm, revision, canary, apart = key
        return ArmSample(
            model=model,
            arm=arm,
            revision=revision,
            canary=canary,
            apart=apart,
            outcomes=self.outcomes,
            forced=self.forced,
            rescued=self.rescued,
            stood_in=self.stood_in,
            turned_away=self.turned_away,
            fell_back=self.fell_back,
            length_limited=self.length_limited,
            degenerate=self.degenerate,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            prompt_sizes=self.prompt_sizes,
            completion_sizes=self.completion_sizes,
            ttft=self.ttft,
            token_time=self.token_time,
            duration=self.duration,
            waited=self.waited,
        )


class Ledger:
    """Takes one entry a request; `take` hands over all of it and starts anew."""

    __slots__ = ("_tallies", "looks")

    def __init__(self) -> None:
        self._tallies: dict[ArmKey, _Tally] = {}
        self.looks = Looks()

    def __bool__(self) -> bool:
        return bool(self._tallies) or bool(self.looks)

    def take(self) -> tuple[ArmSample, ...]:
        tallies, self._tallies = self._tallies, {}
        return tuple(tally.sample(key) for key, tally in tallies.items())

    def rescued(self, key: ArmKey) -> None:
        self._tally(key).rescued += 1

    def fell_back(self, key: ArmKey) -> None:
        """A request that this arm could not answer, and a fallback did."""
        self._tally(key).fell_back += 1

    def turned_away(self, key: ArmKey) -> None:
        """A request that no replica was ready for, or had room for."""
        self._tally(key).turned_away += 1

    def outcome(self, arm: "ArmEntry", cause: "Cause", outcome: Outcome, facts: Facts | None, times: Times) -> None:
        """One request of an arm ended. Paces stay out when the client, not the engine, set them."""
        key = arm.key
        self._tell_look(arm, cause, outcome, facts, times)
        if not cause.is_compared:
            # They still say how many there were, beside the figures that they must not touch.
            tally = self._tally(key)
            tally.forced += cause.is_forced
            tally.stood_in += cause.stands_in
            key = arm.apart_key
        tally = self._tally(key)
        tally.outcomes[outcome] = tally.outcomes.get(outcome, 0) + 1
        if times.waited_s is not None:
            _count(tally.waited, times.waited_s)
        if facts is not None:
            _add(tally, outcome, facts, times)

    def arrived(self, choice: "Choice", ask: Ask, times: Times) -> None:
        """A request whose arm was chosen; counted where both arms could have had it."""
        model = choice.model
        if choice.cause.is_compared and model.share > 0 and model.canary is not None and model.canary.replicas:
            textless = ask.kind is Kind.EMBEDDINGS
            times.look = self.looks.arrived(model, choice.arm.arm, ask.session, textless=textless)

    def dropped(self, times: Times) -> None:
        """It ended, or left its arm, without an outcome; how long it waited for that arm in vain is known."""
        look, times.look = times.look, None
        if look is not None:
            self.looks.left(look, times.waited_s if times.streams else None)

    def _tell_look(self, arm: "ArmEntry", cause: "Cause", outcome: Outcome, facts: Facts | None, times: Times) -> None:
        look = times.look
        if look is None or not cause.is_compared or look.arm is not arm.arm or look.canary != arm.key[3]:
            # Sent elsewhere by a newer table: it says nothing of the arm that it was counted on.
            self.dropped(times)
            return
        times.look = None
        first_s = ttft_s(facts, times) if facts is not None else None
        if outcome is Outcome.CANCELLED:
            waits = times.streams and first_s is None
            self.looks.left(look, time.monotonic() - times.came_at if waits else first_s)
        else:
            each_s = token_time_s(facts) if facts is not None and not times.was_paused else None
            self.looks.ended(look, outcome, facts, first_s, each_s)

    def _tally(self, key: ArmKey) -> _Tally:
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = _Tally()
        return tally


def _add(tally: _Tally, outcome: Outcome, facts: Facts, times: Times) -> None:
    if outcome is Outcome.OK:
        tally.length_limited += facts.length_limited
        if facts.health is not None:
            tally.degenerate += facts.health.is_degenerate(length_limited=facts.length_limited)
        if not times.was_paused:
            _count(tally.duration, time.monotonic() - times.came_at)
    if facts.prompt_tokens is not None:
        tally.prompt_tokens += facts.prompt_tokens
        _count_size(tally.prompt_sizes, facts.prompt_tokens)
    if facts.completion_tokens is not None:
        tally.completion_tokens += facts.completion_tokens
        _count_size(tally.completion_sizes, facts.completion_tokens)
    first_s = ttft_s(facts, times)
    if first_s is not None:
        _count(tally.ttft, first_s)
    each_s = None if times.was_paused else token_time_s(facts)
    if each_s is not None:
        _count(tally.token_time, each_s)


def ttft_s(facts: Facts, times: Times) -> float | None:
    """Seconds to the first token, those in line included: its client waits for either.

    Seen in a stream, or as the engine tells it of a whole answer; else unknown.
    """
    if facts.first_token_at is not None:
        return facts.first_token_at - times.came_at
    return None if facts.prompt_s is None else facts.prompt_s + (times.waited_s or 0.0)


def token_time_s(facts: Facts) -> float | None:
    """Seconds per output token after the first; unknown without a token count, or when all came in one piece."""
    first, last, tokens = facts.first_token_at, facts.last_token_at, facts.completion_tokens
    if first is None:
        return facts.token_s if facts.answered else None
    if tokens is None or tokens < 2 or last is None or last <= first:
        return facts.token_s
    return (last - first) / (tokens - 1)


def _count(histogram: dict[int, int], value_s: float) -> None:
    index = bucket(value_s)
    histogram[index] = histogram.get(index, 0) + 1


def _count_size(histogram: dict[int, int], tokens: int) -> None:
    index = (tokens - 1).bit_length() if tokens > 1 else 0
    histogram[index] = histogram.get(index, 0) + 1
