"""How long a replica that fails is left alone before it is started again. Pure."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_S = 60.0
"""A replica that served this long has its pauses start anew."""
CRASH_LOOP_FAILURES = 3
"""Failures in a row that make a crash loop, which a person should look at."""


def failures_in_a_row(before: int, served_s: float) -> int:
    """With the one that just happened, after it had served for `served_s`; 0 when it never was ready."""
    return 1 if served_s >= STEADY_S else before + 1


def pause_s(failures: int) -> float:
    """Doubles from one failure to the next, up to a minute."""
    return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures - 1, 30)))
