"""Every scenario of the tables."""

from bench.verdict.streams import Scenario

AT_LIMITS = {"canary_failing": 0.015, "ttft": 1.2, "speed": 0.8}
"""The worst canary that is still within: half a per cent of failures and one point, and both ratios exactly."""


def healthy(name: str, **settings: object) -> Scenario:
    return Scenario(name, True, **{"hours": 12.0, **settings})  # type: ignore[arg-type]


def worse(name: str, **settings: object) -> Scenario:
    return Scenario(name, False, **{"hours": 12.0, **settings})  # type: ignore[arg-type]


BUSY = {"per_min": 500.0, "share": 0.05, "hours": 6.0}
QUIET = {"per_min": 5.0, "share": 0.25, "hours": 24.0}
HALF_DAY = {"change_h": 12.0, "hours": 24.0}

NULL = (
    healthy("identical, 5/min, 25 %", **QUIET),
    healthy("identical, 50/min, 10 %"),
    healthy("identical, 500/min, 5 %", **BUSY),
    healthy("ttft × 1.1 and speed × 0.9, 50/min, 10 %", ttft=1.1, speed=0.9),
    healthy("at every limit, 5/min, 25 %", **AT_LIMITS, **QUIET),
    healthy("at every limit, 50/min, 10 %", **AT_LIMITS),
    healthy("at every limit, 500/min, 5 %", **AT_LIMITS, **BUSY),
    healthy("cold start: first 20 answers ttft × 5, 50/min, 10 %", cold=20, hours=6.0),
)
"""Canaries that must not be rolled back, in streams as the promise assumes them: 24 h at 5/min, 12 at 50, 6 at 500."""

ODD = (
    healthy("at every limit, exact quotas", quota=True, **AT_LIMITS, **BUSY),
    healthy("at every limit, sessions of 20 requests", sticky=20, **AT_LIMITS, **BUSY),
    healthy("identical, bursts of 20", burst=20, **BUSY),
    healthy("at every limit, canary's answers 3 × as long", longer=3.0, **AT_LIMITS, **BUSY),
    healthy("at every limit, told 0.8 × the share", told=0.8, **AT_LIMITS, **BUSY),
    healthy("at every limit, canary's answers reported 60 s later", lag_s=60.0, **AT_LIMITS, **BUSY),
    healthy("at every limit, stable fails after 60 s, the canary at once", stable_hang_s=60.0, **AT_LIMITS, **BUSY),
    healthy("identical, canary wanders by 10 %", wander=0.1, **BUSY),
    healthy("identical, canary wanders by 20 %", wander=0.2, **BUSY),
    healthy("identical, canary wanders by 30 %", wander=0.3, **BUSY),
    healthy("at every limit, canary wanders by 10 %", wander=0.1, **AT_LIMITS, **BUSY),
)
"""Canaries that must not be rolled back either, in streams that differ from what is assumed; 500/min at 5 %, 6 h."""

SLOW = tuple(
    healthy(f"identical, canary wanders by {percent} % over {minutes} min", **BUSY, **drift)
    for minutes in (30, 60)
    for percent in (10, 20, 30)
    for drift in ({"wander": percent / 100, "wander_s": 60.0 * minutes},)
)
"""The same with a drift that lasts longer than the guard's blocks and their neighbours can see."""

BAD = (
    worse("hard down", canary_failing=1.0),
    worse("hard down, 500/min, 5 %", canary_failing=1.0, **BUSY),
    worse("20 % bad", canary_failing=0.2),
    worse("20 % hang 60 s, then fail", canary_failing=0.2, hang_s=60.0),
    worse("5 % bad", canary_failing=0.05),
    worse("ttft × 2", ttft=2.0),
    worse("ttft × 1.5", ttft=1.5),
    worse("ttft × 1.3", ttft=1.3, hours=24.0),
    worse("speed × 0.7", speed=0.7),
    worse("5 % of answers ttft × 10", tail=0.05, hours=24.0),
    worse("hard down after half a day", canary_failing=1.0, **HALF_DAY),
    worse("ttft × 2 after 3 h", ttft=2.0, change_h=3.0, hours=6.0),
    worse("ttft × 2 after half a day", ttft=2.0, **HALF_DAY),
)
"""Canaries that must be rolled back; 50/min at 10 % unless said."""

GROUPS = {"null": NULL, "odd": ODD, "slow": SLOW, "bad": BAD}
