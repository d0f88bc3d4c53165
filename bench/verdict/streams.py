"""Synthetic request streams of a model with a canary, as numpy arrays.

Poisson arrivals with a daily cycle; log-normal times to first token (median 0.4 s), output speeds (median 40 tokens/s)
and lengths (median 200 tokens); a load shock shared by both arms (AR(1), 5 minutes) that slows both and multiplies
their failures; each request is sent to the canary by an independent coin.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgwd.verdict.scale import STEP

DAY_S = 86400.0
CELL_S = 10.0
DRIFT_S = 300.0
"""Time constant of shocks, and of a wandering replica where nothing else is said."""
FAILS_AFTER_S = 0.2

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scenario:
    """A stream's settings. Ratios and the canary's failures hold from `change_h` on."""

    name: str
    healthy: bool
    """No roll-back is right."""
    per_min: float = 50.0
    share: float = 0.10
    hours: float = 6.0
    failing: float = 0.005
    """Stable's share of failures."""
    canary_failing: float | None = None
    ttft: float = 1.0
    speed: float = 1.0
    change_h: float = 0.0
    spread: float = 1.0
    """Standard deviation of log time to first token."""
    shock: float = 0.3
    tail: float = 0.0
    """Part of the canary's answers with ten times the time to first token."""
    hang_s: float | None = None
    """Canary failures take this long."""
    stable_hang_s: float | None = None
    """Stable's failures take this long."""
    wander: float = 0.0
    """Standard deviation of the canary replica's own slow drift, of log time to first token; half of it on speed."""
    wander_s: float = DRIFT_S
    """Time constant of that drift."""
    cold: int = 0
    """First canary answers that take five times as long to begin."""
    lag_s: float = 0.0
    """Delay with which the canary's answers are reported."""
    told: float = 1.0
    """The share that the judge is told, as a part of the true one."""
    quota: bool = False
    """Every n-th request instead of a coin."""
    sticky: int = 1
    """Requests of a session, all on one side."""
    burst: int = 1
    """Requests that arrive at once."""
    longer: float = 1.0
    """Output length of the canary's answers, as a multiple."""


@dataclass(frozen=True)
class Stream:
    """One entry a request, in order of arrival; cells are those of `llmgwd.verdict.scale`."""

    arrived_s: Floats
    known_s: Floats
    """When its end is known to the judge."""
    canary: NDArray[np.bool_]
    ok: NDArray[np.bool_]
    ttft_s: Floats
    token_s: Floats
    tokens: NDArray[np.int64]
    ttft_cell: NDArray[np.int64]
    token_cell: NDArray[np.int64]


def make(scenario: Scenario, seed: tuple[int, ...]) -> Stream:
    """The stream of one trial; equal seeds give equal streams, whatever else runs."""
    rng = np.random.default_rng(seed)
    cells = int(scenario.hours * 3600.0 / CELL_S)
    at = np.arange(cells) * CELL_S
    day = np.sin(2 * np.pi * (at / DAY_S + rng.random()))
    groups = rng.poisson(scenario.per_min / scenario.burst / 60.0 * CELL_S * (1 + 0.6 * day))
    arrived = np.repeat(np.sort(np.repeat(at, groups) + rng.random(int(groups.sum())) * CELL_S), scenario.burst)
    n = len(arrived)
    cell = (arrived / CELL_S).astype(np.int64)
    canary = _split(scenario, rng, n)
    changed = canary & (arrived >= scenario.change_h * 3600.0)
    shock = _drift(rng, cells, scenario.shock, DRIFT_S)
    load = (shock + 0.2 * day)[cell]
    if scenario.wander:
        load = load + np.where(canary, _drift(rng, cells, scenario.wander, scenario.wander_s)[cell], 0.0)

    failing = scenario.failing * np.exp(1.5 * shock - (1.5 * scenario.shock) ** 2 / 2)[cell]
    if scenario.canary_failing is not None:
        gross = scenario.canary_failing >= 0.15
        ratio = scenario.canary_failing / scenario.failing
        failing = np.where(changed, scenario.canary_failing if gross else failing * ratio, failing)
    ok = rng.random(n) >= failing

    ttft = 0.4 * np.exp(load + scenario.spread * rng.standard_normal(n)) * np.where(changed, scenario.ttft, 1.0)
    if scenario.tail:
        ttft = np.where(changed & (rng.random(n) < scenario.tail), 10 * ttft, ttft)
    if scenario.cold:
        ttft = np.where(canary & (np.cumsum(canary) <= scenario.cold), 5 * ttft, ttft)
    speed = 40.0 * np.exp(-0.5 * load + 0.25 * rng.standard_normal(n)) * np.where(changed, scenario.speed, 1.0)
    length = 200 * np.exp(0.8 * rng.standard_normal(n)) * np.where(canary, scenario.longer, 1.0)
    tokens = np.maximum(2, length).astype(np.int64)
    took = np.where(ok, ttft + (tokens - 1) / speed, FAILS_AFTER_S)
    if scenario.hang_s is not None:
        took = np.where(changed & ~ok, scenario.hang_s, took)
    if scenario.stable_hang_s is not None:
        took = np.where(~canary & ~ok, scenario.stable_hang_s, took)
    known = arrived + took + np.where(canary, scenario.lag_s, 0.0)
    return Stream(arrived, known, canary, ok, ttft, 1 / speed, tokens, _cells(ttft), _cells(1 / speed))


def _split(scenario: Scenario, rng: np.random.Generator, n: int) -> NDArray[np.bool_]:
    if scenario.quota:
        turns = np.floor(np.arange(n + 1) * scenario.share + rng.random())
        return np.asarray(np.diff(turns) > 0)
    sessions = rng.random(n // scenario.sticky + 1) < scenario.share
    return np.repeat(sessions, scenario.sticky)[:n]


def _drift(rng: np.random.Generator, cells: int, deviation: float, constant_s: float) -> Floats:
    """A stationary AR(1) process, a value a cell."""
    kept = np.exp(-CELL_S / constant_s)
    steps = (rng.standard_normal(cells) * deviation * np.sqrt(1 - kept * kept)).tolist()
    value = rng.standard_normal() * deviation
    values = []
    for step in steps:
        value = kept * value + step
        values.append(value)
    return np.array(values)


def _cells(seconds: Floats) -> NDArray[np.int64]:
    return np.floor(np.log(seconds) / STEP).astype(np.int64)
