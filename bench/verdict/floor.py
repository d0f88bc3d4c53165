"""How few canary requests any test can do with: one that knows both arms' laws beforehand and spends the whole error
budget on this one question (Wald's likelihood ratio test of the change against the limit).

python -m bench.verdict.floor
"""

import math

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.05
LIVES, REQUESTS = 4000, 20_000
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


def main() -> None:
    print("| | fewest, median |\n|---|---|")
    rng = np.random.default_rng(1)
    for name, shift in TIMES.items():
        print(f"| {name} | {median(shift * rng.standard_normal((LIVES, size(shift))) + shift * shift / 2):,.0f} |")
    for name, share in SHARES.items():
        bad = rng.random((LIVES, 1000)) < share
        gain = np.where(bad, math.log(share / BAR), math.log((1 - share) / (1 - BAR)))
        print(f"| {name} | {median(gain):,.0f} |")


def size(shift: float) -> int:
    """Requests within which all but a few lives end."""
    return min(REQUESTS, int(40 / (shift * shift)))


def median(gains: NDArray[np.float64]) -> float:
    """Requests until the log likelihood ratio reaches the bar; gains are (lives, requests)."""
    reached = np.cumsum(gains, axis=1) >= math.log(1 / ALPHA)
    return float(np.median(np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, gains.shape[1])))


if __name__ == "__main__":
    main()
