"""The judge: what both arms' samples over a canary's life show, as a state and a sentence.

A canary is `worse` once it has been given enough requests and is beyond a limit, `fine` when it is within all of them,
and `undecided` until then. Limits are compared with point estimates; nothing else in the house looks at them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgwd.verdict.sketch import quantile

MIN_REQUESTS = 50
"""Canary requests before any limit counts."""
MIN_TIMED = 20
"""Timed answers on each arm before their medians are compared."""

LIMITS: dict[str, float] = {
    "bad_answers": 1.0,
    "length_limited": 5.0,
    "ttft": 1.2,
    "speed": 0.8,
}
"""The limits and their defaults: percentage points for the first two, ratios canary : stable for the others."""


@dataclass(frozen=True)
class Figures:
    """One arm over the canary's life. Histograms are those of `llmgwd.verdict.sketch`, over seconds."""

    requests: int = 0
    bad: int = 0
    length_limited: int = 0
    ttft: Mapping[int, int] = field(default_factory=dict)
    token_time: Mapping[int, int] = field(default_factory=dict)

    @property
    def bad_share(self) -> float | None:
        """0–1; None without requests."""
        return self.bad / self.requests if self.requests else None

    @property
    def length_share(self) -> float | None:
        """0–1; None without requests."""
        return self.length_limited / self.requests if self.requests else None

    @property
    def ttft_s(self) -> float | None:
        """Median seconds to first token."""
        return quantile(self.ttft, 0.5)

    @property
    def tokens_per_s(self) -> float | None:
        """Median output speed."""
        token_time = quantile(self.token_time, 0.5)
        return 1 / token_time if token_time else None


@dataclass(frozen=True)
class Verdict:
    """`state` is `worse`, `fine` or `undecided`."""

    state: str
    sentence: str


def judge(stable: Figures, canary: Figures, limits: Mapping[str, float]) -> Verdict:
    """The verdict on a canary. `limits` overrides LIMITS by name; an unknown name raises KeyError."""
    allowed = {**LIMITS, **limits}
    if unknown := allowed.keys() - LIMITS.keys():
        raise KeyError(f"no such limit: {', '.join(sorted(unknown))}")
    if canary.requests < MIN_REQUESTS:
        missing = MIN_REQUESTS - canary.requests
        return Verdict("undecided", f"{canary.requests} canary requests so far; {missing} more before it is judged")
    if stable.requests == 0:
        return Verdict("undecided", "stable has answered nothing to compare with")
    excesses = [
        sentence
        for sentence in (
            _share("bad answers", canary.bad, stable.bad, canary, stable, allowed["bad_answers"]),
            _share(
                "answers cut at the length limit",
                canary.length_limited,
                stable.length_limited,
                canary,
                stable,
                allowed["length_limited"],
            ),
            _ttft(canary, stable, allowed["ttft"]),
            _speed(canary, stable, allowed["speed"]),
        )
        if sentence
    ]
    if excesses:
        return Verdict("worse", "; ".join(excesses))
    return Verdict(
        "fine", f"within every limit after {canary.requests} canary requests against {stable.requests} on stable"
    )


def _share(what: str, bad: int, stable_bad: int, canary: Figures, stable: Figures, points: float) -> str:
    ours, theirs = 100 * bad / canary.requests, 100 * stable_bad / stable.requests
    if ours - theirs <= points:
        return ""
    return (
        f"{ours:.1f} % {what} ({bad} of {canary.requests}) against {theirs:.1f} % on stable "
        f"({stable_bad} of {stable.requests}); the limit is +{points:g} points"
    )


def _timed(canary: Mapping[int, int], stable: Mapping[int, int]) -> bool:
    return min(sum(canary.values()), sum(stable.values())) >= MIN_TIMED


def _ttft(canary: Figures, stable: Figures, ratio: float) -> str:
    ours, theirs = canary.ttft_s, stable.ttft_s
    if not _timed(canary.ttft, stable.ttft) or ours is None or theirs is None or ours <= ratio * theirs:
        return ""
    return (
        f"median time to first token {1000 * ours:.0f} ms on {sum(canary.ttft.values())} answers against "
        f"{1000 * theirs:.0f} ms on {sum(stable.ttft.values())} ({ours / theirs:.2f} ×); the limit is {ratio:g} ×"
    )


def _speed(canary: Figures, stable: Figures, ratio: float) -> str:
    ours, theirs = canary.tokens_per_s, stable.tokens_per_s
    if not _timed(canary.token_time, stable.token_time) or ours is None or theirs is None or ours >= ratio * theirs:
        return ""
    return (
        f"median {ours:.1f} tokens/s on {sum(canary.token_time.values())} answers against "
        f"{theirs:.1f} on {sum(stable.token_time.values())} ({ours / theirs:.2f} ×); the limit is {ratio:g} ×"
    )
