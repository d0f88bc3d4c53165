"""Samples of an arm, added up."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from llmgwd.protocol.samples import ArmSample, Outcome

Key = TypeVar("Key")

BAD = (Outcome.ERROR, Outcome.TRUNCATED, Outcome.EMPTY)
"""Answers that a client feels as bad."""
NOT_JUDGED = (Outcome.CANCELLED,)


def merged(first: ArmSample, second: ArmSample) -> ArmSample:
    """Both together, under the first's names."""
    return msgspec.structs.replace(
        first,
        outcomes=_sum(first.outcomes, second.outcomes),
        forced=first.forced + second.forced,
        rescued=first.rescued + second.rescued,
        stood_in=first.stood_in + second.stood_in,
        turned_away=first.turned_away + second.turned_away,
        fell_back=first.fell_back + second.fell_back,
        length_limited=first.length_limited + second.length_limited,
        degenerate=first.degenerate + second.degenerate,
        prompt_tokens=first.prompt_tokens + second.prompt_tokens,
        completion_tokens=first.completion_tokens + second.completion_tokens,
        prompt_sizes=_sum(first.prompt_sizes, second.prompt_sizes),
        completion_sizes=_sum(first.completion_sizes, second.completion_sizes),
        ttft=_sum(first.ttft, second.ttft),
        token_time=_sum(first.token_time, second.token_time),
        duration=_sum(first.duration, second.duration),
        waited=_sum(first.waited, second.waited),
    )


def judged(sample: ArmSample) -> int:
    """Requests that count in the verdict."""
    return sum(count for outcome, count in sample.outcomes.items() if outcome not in NOT_JUDGED)


def bad(sample: ArmSample) -> int:
    return sum(sample.outcomes.get(outcome, 0) for outcome in BAD)


def _sum(first: Mapping[Key, int], second: Mapping[Key, int]) -> dict[Key, int]:
    return {key: first.get(key, 0) + second.get(key, 0) for key in first.keys() | second.keys()}
