"""One metric's figures as they are shown, and kept with a verdict that is final."""

from dataclasses import dataclass

from llmgwd.verdict.limits import Metric

WITHIN = "within"
OFF = "off"
ABSENT = "absent"


@dataclass(frozen=True)
class MetricFigures:
    """One metric. Shares are in 0–1 with their difference as the interval; times in seconds with their ratio.

    `speed` is in seconds per output token, so that more is worse everywhere; `limit` and the interval are turned the
    same way (a limit of 0.8 × the speed is 1.25 × the time).
    """

    metric: Metric
    state: str
    """`worse`, `within`, `undecided`, `off`, or `absent` where no answer of either arm can have it."""
    limit: float | None
    canary_n: int
    stable_n: int
    canary_hits: int = 0
    stable_hits: int = 0
    canary_value: float | None = None
    stable_value: float | None = None
    low: float | None = None
    high: float | None = None
    since_look: int | None = None
    """Look in which the present evidence against the canary began, when the figures count only from there."""
