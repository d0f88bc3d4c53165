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

    Requests whose arm the split did not choose are in samples of their own, marked `apart`, which belong in no
    comparison of the arms; beside those that the split chose, only `forced`, `rescued` and `stood_in` tell of them. The
    histograms of times map a bucket index to a count; the bucket of a value is that of `llmgwd.verdict.sketch.bucket`.
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
    stood_in: int = 0
    """Requests of the other arm that this one took because the other could not."""
    turned_away: int = 0
    """Requests that waited in vain for a replica, or found no place to wait. No arm's fault, and no outcome."""
    fell_back: int = 0
    """Requests that failed here or were turned away, and that a fallback of the model answered."""
    length_limited: int = 0
    """`ok` answers whose finish reason was the length limit."""
    degenerate: int = 0
    """`ok` answers that repeat themselves, or are not the JSON that was asked for."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_sizes: dict[int, int] = {}
    """Requests by the length of their prompt: at most two to this power tokens, and more than the power before."""
    completion_sizes: dict[int, int] = {}
    """The same of what was generated."""
    ttft: dict[int, int] = {}
    """Seconds to the first content, reasoning or tool-call delta; of a whole answer, the engine's own prompt time.

    Time in the gateway's own line is not in it.
    """
    token_time: dict[int, int] = {}
    """Seconds per output token after the first."""
    duration: dict[int, int] = {}
    """Seconds from a request's last byte to its `ok` answer's, time in line included."""
    waited: dict[int, int] = {}
    """Seconds in line of the requests that stood in one."""
    apart: bool = False
    """Whether these requests forced their arm, stood in for the other, or were rescued: in no comparison."""


class LookSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became, since the last report, of the requests of one arm that arrived in one look under one share.

    Only requests whose arm the split chose are in it. The fields are those of `llmgwd.verdict.counts.ArmCounts`, the
    histograms' cells those of `llmgwd.verdict.scale.cell`.
    """

    canary: str
    arm: Arm
    look: int
    """Arrival, in seconds of the wall clock, // the look's length."""
    share: float
    """Percent that the canary was given when they were split."""
    arrived: int = 0
    ended: int = 0
    cancelled: int = 0
    bad: int = 0
    length_limited: int = 0
    degenerate: int = 0
    rejected: int = 0
    keys: int = 0
    left_out: int = 0
    textless: int = 0
    ttft: dict[int, int] = {}
    token_time: dict[int, int] = {}


class LoadSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """How busy the replicas of one arm were in one look, since the last report, with whatever requests they had."""

    canary: str
    arm: Arm
    look: int
    """As that of `LookSample`, of the time that went by rather than of arrivals."""
    held_s: float = 0.0
    """Seconds that requests were in flight, summed over them."""
    busy_s: float = 0.0
    """Seconds that slots were in use, summed over them; 0 also where their number is not known."""
