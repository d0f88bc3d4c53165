"""How much more than chance the gap between the arms wanders, and how much evidence of times is toned down for it.

A replica's own speed may drift for minutes at a time; requests of one stretch then tell less than their number says.
The gap of the arms' mean scores is kept for blocks of five minutes, in units of its standard error. With independent
requests those have a variance of 1. Their long-run variance (Bartlett's estimate: neighbours count too, since a drift
lasts longer than a block) says by how much evidence is overstated, and the bets are raised to its inverse.
"""

import math
from dataclasses import dataclass, field

from llmgwd.verdict.times import Sums

BLOCK_S = 300.0
LEAST_IN_BLOCK = 4
"""Times that a block needs on each arm."""
BLOCKS = 96
"""Blocks that are remembered: eight hours of traffic."""
SETTLED = 6
"""The newest blocks, left out of the estimate once there are enough older ones: trouble that begins now is no drift."""
LAGS = 2
PRIOR_BLOCKS = 6.0
DRIFT_SHOWS, DRIFT_STEP = 40.0, 20.0
"""Canary times in a block from which a drift would show in them, and how many more overstate the evidence by once more,
until blocks have shown that the gap is steady."""
LONGER = 2.2
"""By how much a drift's long-run variance exceeds what blocks and their LAGS neighbours show of it."""

CLEAR_JUMP = 25.0
"""Square of the jump between two stretches of gaps, in units of its own standard error, from which it is one."""
LEAST_BESIDE_JUMP = 3
"""Gaps on each side of a jump."""


@dataclass
class Guard:
    """The block under way, and the gaps of those before."""

    canary_n: float = 0.0
    stable_n: float = 0.0
    canary_sum: float = 0.0
    stable_sum: float = 0.0
    stable_squares: float = 0.0
    began: int | None = None
    """Look in which the block began."""
    gaps: list[float] = field(default_factory=list)
    seen: int = 0
    """Gaps that `variance` rests on."""
    variance: float = 1.0
    usual_n: float = 0.0
    """Canary times of a block, lately."""

    def see(self, look: int, look_s: float, canary: Sums, stable: Sums) -> None:
        """Adds a closed look; ends the block when it is long enough."""
        if self.began is None or (self.began - look) * look_s > BLOCK_S:
            # So far behind the block's beginning means that the clock was set back.
            self.began = look
        self.canary_n += canary.n
        self.canary_sum += canary.normal
        self.stable_n += stable.n
        self.stable_sum += stable.normal
        self.stable_squares += stable.squares
        past_s = max(1, look + 1 - self.began) * look_s
        if past_s >= BLOCK_S:
            self._end()
        elif not self.gaps:
            # Of the very first block, counted low at its beginning.
            self.usual_n = self.canary_n * BLOCK_S / (past_s + look_s)

    def _end(self) -> None:
        if min(self.canary_n, self.stable_n) >= LEAST_IN_BLOCK:
            mean = self.stable_sum / self.stable_n
            variance = max(self.stable_squares / self.stable_n - mean * mean, 1e-4)
            error = math.sqrt(variance * (1 / self.canary_n + 1 / self.stable_n))
            self.gaps = [*self.gaps, (self.canary_sum / self.canary_n - mean) / error][-BLOCKS:]
            older = self.gaps[:-SETTLED] if len(self.gaps) >= 2 * SETTLED else self.gaps
            self.seen, self.variance = len(older), long_run_variance(older)
            self.usual_n = self.canary_n if len(self.gaps) == 1 else 0.8 * self.usual_n + 0.2 * self.canary_n
        self.canary_n = self.stable_n = 0.0
        self.canary_sum = self.stable_sum = self.stable_squares = 0.0
        self.began = None

    @property
    def overstated(self) -> float:
        """By how much the evidence of times counts too much, at least 1."""
        weight = self.seen + PRIOR_BLOCKS
        usual = 1.0 + max(0.0, self.usual_n - DRIFT_SHOWS) / DRIFT_STEP
        supposed = (self.seen * self.variance + PRIOR_BLOCKS * usual) / weight
        shown = (self.seen * self.variance + PRIOR_BLOCKS) / weight
        supposed = min(max(1.0, supposed), usual)
        # Chance alone makes the estimate stray, by two thirds of this.
        if self.seen < 3 or shown <= 1.0 + math.sqrt(9.0 / weight):
            return supposed
        return max(supposed, 1.0 + LONGER * (shown - 1.0))


def long_run_variance(gaps: list[float]) -> float:
    """Bartlett's estimate with LAGS neighbours, at least 0; of fewer than two gaps 1."""
    n = len(gaps)
    return 1.0 if n < 2 else max(0.0, _bartlett(without_jump(gaps), n - 1))


def _bartlett(off: list[float], freedom: int) -> float:
    """The same of what gaps differ from their mean; below 0 where neighbours differ more than chance has them."""
    variance = sum(value * value for value in off) / freedom
    for lag in range(1, LAGS + 1):
        near = sum(first * second for first, second in zip(off, off[lag:], strict=False)) / freedom
        variance += 2.0 * (1.0 - lag / (LAGS + 1)) * near
    return variance


def without_jump(gaps: list[float]) -> list[float]:
    """What each gap differs from the mean, or, where they jumped once and clearly, from the mean of its side.

    A canary that gets worse at one moment is no drift, and must not be taken for one: that would silence the very
    evidence against it. A drift of half an hour has steps as well; but then each side wanders by itself, and it is the
    long-run variance of the sides that a jump has to stand out from.
    """
    n, total = len(gaps), math.fsum(gaps)
    best, at, sum_before = 0.0, 0, 0.0
    for before, gap in enumerate(gaps[:-1], start=1):
        sum_before += gap
        between = (sum_before - total * before / n) ** 2 * n / (before * (n - before))
        if between > best and min(before, n - before) >= LEAST_BESIDE_JUMP:
            best, at = between, before
    off, freedom = _off_the_mean(gaps[:at]) + _off_the_mean(gaps[at:]), max(1, n - 2)
    chance = max(_bartlett(off, freedom), sum(value * value for value in off) / freedom, 1e-9)
    return off if at and best > CLEAR_JUMP * chance else _off_the_mean(gaps)


def _off_the_mean(gaps: list[float]) -> list[float]:
    mean = math.fsum(gaps) / max(1, len(gaps))
    return [gap - mean for gap in gaps]
