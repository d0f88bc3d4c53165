"""What the judge costs: a look at 1,000 canaries, quiet and busy ones, and a sample at a worker.

python -m bench.verdict.speed
"""

import random
import time
from collections.abc import Callable
from statistics import median

from llmgwd.verdict.counts import ArmCounts
from llmgwd.verdict.decision import decide
from llmgwd.verdict.evidence import LOOK_S, Evidence, add_canary, add_stable, begin, ripe
from llmgwd.verdict.report import report
from llmgwd.verdict.scale import cell
from llmgwd.verdict.settle import settle

SHARE = 0.1
CANARIES = 1000


def main() -> None:
    rng = random.Random(1)
    told = grown(rng, looks=100)
    canaries = [grown(rng, looks=12) for _ in range(CANARIES)]
    print(f"{CANARIES:,} canaries without traffic: {1000 * best(lambda: look_at_all(canaries, 13)):.0f} ms")
    for first, requests in ((20, 2), (40, 50)):
        spent = []
        for number in range(first, first + 12):
            for each in canaries:
                feed(each, rng, number, requests)
            spent.append(best(lambda number=number: look_at_all(canaries, number + 1), times=1))  # type: ignore[misc]
        print(f"{CANARIES:,} canaries with {requests} new requests each: {1000 * median(spent[2:]):.0f} ms")
    spent = []
    for number in range(100, 140):
        feed(told, rng, number, 250)
        spent.append(best(lambda number=number: look(told, number + 1), times=1))  # type: ignore[misc]
    print(f"a look with 250 new requests: {1e6 * median(spent):.0f} µs")
    decision = decide(told, 1e6)
    print(f"a report: {1000 * best(lambda: report(told, decision)):.1f} ms")
    print(f"a sample at the worker: {1e6 * best(lambda: samples(100_000), times=3) / 100_000:.2f} µs")


def best(act: Callable[[], object], times: int = 5) -> float:
    """Seconds."""
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        spent.append(time.perf_counter() - began)
    return min(spent)


def grown(rng: random.Random, looks: int) -> Evidence:
    evidence = begin({})
    for number in range(looks):
        feed(evidence, rng, number, 25)
        look(evidence, number + 1)
    return evidence


def feed(evidence: Evidence, rng: random.Random, number: int, requests: int) -> None:
    canary = sum(rng.random() < SHARE for _ in range(requests))
    for add, n in ((add_canary, canary), (add_stable, requests - canary)):
        counts = ArmCounts(arrived=n, ended=n)
        for _ in range(n):
            for times, median_s in ((counts.ttft, 0.4), (counts.token_time, 0.025)):
                index = cell(median_s * rng.lognormvariate(0, 0.5))
                times[index] = times.get(index, 0) + 1
        add(evidence, number, SHARE, counts)


def look_at_all(canaries: list[Evidence], number: int) -> None:
    for evidence in canaries:
        look(evidence, number)


def look(evidence: Evidence, number: int) -> None:
    settle(evidence, ripe(evidence, number * LOOK_S), number - 1)
    decide(evidence, 1e6)


def samples(requests: int) -> None:
    """What a worker does for one answer: two cells and a few counters."""
    counts = ArmCounts()
    for _ in range(requests):
        counts.ended += 1
        for times, seconds in ((counts.ttft, 0.4), (counts.token_time, 0.025)):
            index = cell(seconds)
            times[index] = times.get(index, 0) + 1


if __name__ == "__main__":
    main()
