"""How few canary requests a test can do with, in the median, on log-normal times and on shares of bad answers.

python -m bench.verdict.floor

`knows both laws` is Wald's likelihood ratio test of the change against the limit: told beforehand what to look for, and
given the whole error budget for it. `one of llmgw's bets` is the roll-back bet on times that fits best, given the whole
error budget too: what it takes more than that is the price of watching for everything at once.
"""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from llmgwd.verdict.times import LEVELS, TimesRecord, rank_logs

ALPHA = 0.05
LIVES, REQUESTS = 4000, 20_000
RANKED_LIVES = 500
PER_CANARY = 9
"""Stable requests for each of the canary: a share of 10 %."""
TIMES = {
    "ttft × 2": math.log(2.0 / 1.2),
    "ttft × 1.5": math.log(1.5 / 1.2),
    "ttft × 1.3": math.log(1.3 / 1.2),
    "speed × 0.7": math.log(0.8 / 0.7) / 0.25,
}
"""The change beyond the limit, in standard deviations of log time."""
SHARES = {"5 % bad": 0.05, "20 % bad": 0.2}
BAR = 0.015
"""Stable's share of failures and the limit."""

Floats = NDArray[np.float64]


def main() -> None:
    print("| | knows both laws | one of llmgw's bets |\n|---|---|---|")
    rng = np.random.default_rng(1)
    for name, shift in TIMES.items():
        knows = median(shift * rng.standard_normal((LIVES, size(shift))) + shift * shift / 2)
        print(f"| {name} | {knows:,.0f} | {ranked(shift, rng):,.0f} |")
    for name, share in SHARES.items():
        bad = rng.random((LIVES, 1000)) < share
        gain = np.where(bad, math.log(share / BAR), math.log((1 - share) / (1 - BAR)))
        print(f"| {name} | {median(gain):,.0f} | |")


def ranked(shift: float, rng: np.random.Generator) -> float:
    """The fewest canary requests, in the median, that any of the bets on ranks takes."""
    record, ratio = TimesRecord(), 1 / PER_CANARY
    of_canary = np.array([rank_logs(record, ratio, [level], (), ())[0] for level in range(LEVELS)])
    of_stable = np.array([rank_logs(record, ratio, (), (), [level])[0] for level in range(LEVELS)])
    edges = np.array([NormalDist().inv_cdf(level / LEVELS) for level in range(1, LEVELS)])
    requests = size(shift)
    canary = np.searchsorted(edges, shift + rng.standard_normal((RANKED_LIVES, requests))).astype(np.int8)
    medians = []
    others = [rng.integers(LEVELS, size=(RANKED_LIVES, requests), dtype=np.int8) for _ in range(PER_CANARY)]
    for bet in range(of_canary.shape[1]):
        gains = of_canary[canary, bet]
        for levels in others:
            gains = gains + of_stable[levels, bet]
        medians.append(median(gains))
    return min(medians)


def size(shift: float) -> int:
    """Requests within which all but a few lives end."""
    return min(REQUESTS, int(40 / (shift * shift)))


def median(gains: Floats) -> float:
    """Requests until the log wealth or likelihood ratio reaches the bar; gains are (lives, requests)."""
    reached = np.cumsum(gains, axis=1) >= math.log(1 / ALPHA)
    return float(np.median(np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, gains.shape[1])))


if __name__ == "__main__":
    main()
