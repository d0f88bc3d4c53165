"""What happened since the last report, added up by arm; its size depends on the number of arms, not of requests."""

from llmgwd.gateway.meter import Facts
from llmgwd.protocol.samples import Arm, ArmSample, Outcome
from llmgwd.verdict.sketch import bucket

ArmKey = tuple[str, Arm, str, str]
"""Model, arm, revision, canary's id."""


class _Tally:
    """One arm's running counts."""

    __slots__ = (
        "completion_tokens",
        "forced",
        "length_limited",
        "outcomes",
        "prompt_tokens",
        "rescued",
        "token_time",
        "ttft",
    )

    def __init__(self) -> None:
        self.outcomes: dict[Outcome, int] = {}
        self.forced = 0
        self.rescued = 0
        self.length_limited = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.ttft: dict[int, int] = {}
        self.token_time: dict[int, int] = {}

    def sample(self, key: ArmKey) -> ArmSample:
        model, arm, revision, canary = key
        return ArmSample(
            model=model,
            arm=arm,
            revision=revision,
            canary=canary,
            outcomes=self.outcomes,
            forced=self.forced,
            rescued=self.rescued,
            length_limited=self.length_limited,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            ttft=self.ttft,
            token_time=self.token_time,
        )


class Ledger:
    """Takes one entry a request; `take` hands over all of it and starts anew."""

    __slots__ = ("_tallies",)

    def __init__(self) -> None:
        self._tallies: dict[ArmKey, _Tally] = {}

    def __bool__(self) -> bool:
        return bool(self._tallies)

    def take(self) -> tuple[ArmSample, ...]:
        tallies, self._tallies = self._tallies, {}
        return tuple(tally.sample(key) for key, tally in tallies.items())

    def forced(self, key: ArmKey) -> None:
        self._tally(key).forced += 1

    def rescued(self, key: ArmKey) -> None:
        self._tally(key).rescued += 1

    def outcome(
        self, key: ArmKey, outcome: Outcome, facts: Facts | None, started_at: float, *, times_count: bool = True
    ) -> None:
        """One request of an arm ended. Times stay out when the client, not the engine, set the pace."""
        tally = self._tally(key)
        tally.outcomes[outcome] = tally.outcomes.get(outcome, 0) + 1
        if facts is None:
            return
        if outcome is Outcome.OK:
            tally.length_limited += facts.length_limited
        tally.prompt_tokens += facts.prompt_tokens or 0
        tally.completion_tokens += facts.completion_tokens or 0
        first_s = ttft_s(facts, started_at)
        if first_s is not None:
            _count(tally.ttft, first_s)
        each_s = token_time_s(facts) if times_count else None
        if each_s is not None:
            _count(tally.token_time, each_s)

    def _tally(self, key: ArmKey) -> _Tally:
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = _Tally()
        return tally


def ttft_s(facts: Facts, started_at: float) -> float | None:
    """Seconds to the first token: seen in a stream, or as the engine tells it of a whole answer; else unknown."""
    if facts.first_token_at is not None:
        return facts.first_token_at - started_at
    return facts.prompt_s


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
