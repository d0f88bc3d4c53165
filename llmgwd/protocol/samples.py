"""One arm's samples over a stretch of time, as the gateway hands them to the daemon."""

from enum import StrEnum

import msgspec


class Arm(StrEnum):
    """Which side served a request."""

    STABLE = "stable"
    CANARY = "canary"


class Outcome(StrEnum):
    """How a request ended (G4)."""

    OK = "ok"
    ERROR = "error"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


class ArmSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one arm of one model did. Everything in it adds up: two of them merge by addition, in any order.

    Only requests whose arm the split chose are in `outcomes` and what follows; requests that forced their arm are
    counted in `forced` alone. The histograms map a bucket index to a count; the bucket of a value is that of
    `llmgwd.verdict.sketch.bucket`.
    """

    model: str
    arm: Arm
    revision: str
    canary: str = ""
    """The canary's id while the model has one, on both arms; empty otherwise."""
    outcomes: dict[Outcome, int] = {}
    forced: int = 0
    rescued: int = 0
    """Canary requests that failed and were answered by stable; they are `error` in `outcomes`."""
    length_limited: int = 0
    """`ok` answers whose finish reason was the length limit."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    ttft: dict[int, int] = {}
    """Seconds to the first content, reasoning or tool-call delta; of a whole answer, the engine's own prompt time."""
    token_time: dict[int, int] = {}
    """Seconds per output token after the first."""
