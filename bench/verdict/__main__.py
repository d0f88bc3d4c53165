"""The judge and what others do, on simulated traffic, as a markdown table.

    python -m bench.verdict null|odd|slow|bad [--trials N] [--hours H] [--scenario PART] [--baselines] [--bare]
                            [--seed N]

`null`: canaries that must stay, with the share of lives in which they were rolled back (95 % interval) and promoted.
`odd`: the same in streams that differ from what the promise assumes; `slow`: in drifts of half an hour and more.
`bad`: canaries that must go, with the canary requests until they went. A trial's stream depends on the seed, the
scenario's name and the trial's number alone, so that rows can be run apart and side by side.
"""

import argparse
import math
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.verdict.baselines import BASELINES
from bench.verdict.scenarios import GROUPS
from bench.verdict.shipped import Outcome, judged, judged_bare
from bench.verdict.streams import Scenario, Stream, make

Method = Callable[[Stream, Scenario], Outcome]
SHIPPED = "llmgw"


@dataclass(frozen=True)
class Life:
    """One trial under one method; `requests` of the canary from the change to the decision."""

    decision: str
    requests: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--hours", type=float, help="length of a life, instead of the scenario's own")
    parser.add_argument("--scenario", default="", help="only those with this in their name")
    parser.add_argument("--baselines", action="store_true", help="also what others do")
    parser.add_argument("--bare", action="store_true", help="also llmgw by completion, and without its guard")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chosen = [scenario for scenario in GROUPS[arguments.group] if arguments.scenario in scenario.name]
    if arguments.hours:
        chosen = [replace(scenario, hours=arguments.hours) for scenario in chosen]
    methods = methods_of(baselines=arguments.baselines, bare=arguments.bare)
    print(f"| {arguments.trials} lives each | " + " | ".join(methods) + " |")
    print("|---|" + "---|" * len(methods))
    for scenario in chosen:
        lives = play(scenario, methods, arguments.trials, arguments.seed)
        shown = shown_null if scenario.healthy else shown_bad
        print(f"| {scenario.name} | " + " | ".join(shown(lives[name]) for name in methods) + " |")
        sys.stdout.flush()


def methods_of(*, baselines: bool, bare: bool) -> dict[str, Method]:
    methods: dict[str, Method] = {SHIPPED: judged}
    if bare:
        methods["by completion, no guard"] = judged_bare
    if baselines:
        methods |= {name: _as_method(rule) for name, rule in BASELINES.items()}
    return methods


def _as_method(rule: Callable[[Stream, float], float | None]) -> Method:
    def method(stream: Stream, scenario: Scenario) -> Outcome:
        end_s = scenario.hours * 3600.0
        at_s = rule(stream, end_s)
        return Outcome("continue", end_s) if at_s is None else Outcome("rollback", at_s)

    return method


def play(scenario: Scenario, methods: dict[str, Method], trials: int, seed: int) -> dict[str, list[Life]]:
    """Every method on the same streams."""
    lives: dict[str, list[Life]] = {name: [] for name in methods}
    changed_s = scenario.change_h * 3600.0
    for trial in range(trials):
        stream = make(scenario, (seed, zlib.crc32(scenario.name.encode()), trial))
        for name, method in methods.items():
            outcome = method(stream, scenario)
            decision = "early" if outcome.decision == "rollback" and outcome.at_s < changed_s else outcome.decision
            since = stream.canary & (stream.arrived_s >= changed_s) & (stream.arrived_s <= outcome.at_s)
            lives[name].append(Life(decision, int(since.sum())))
    return lives


def shown_null(lives: Sequence[Life]) -> str:
    """`2.0 % [0.9, 4.6], promoted 31 %`."""
    n = len(lives)
    gone = sum(life.decision == "rollback" for life in lives)
    low, high = wilson(gone, n)
    kept = [life.requests for life in lives if life.decision == "promote"]
    promoted = f", promoted {100 * len(kept) / n:.0f} %"
    if kept:
        promoted += f" ({np.median(kept):,.0f})"
    return f"{100 * gone / n:.1f} % [{100 * low:.1f}, {100 * high:.1f}]{promoted}"


def shown_bad(lives: Sequence[Life]) -> str:
    """`62`, the median, with what went wrong in brackets."""
    n = len(lives)
    found = [life.requests for life in lives if life.decision == "rollback"]
    notes = [
        f"{100 * count / n:.0f} % {what}"
        for decision, what in (("early", "thrown out before"), ("promote", "promoted"), ("continue", "not found"))
        if (count := sum(life.decision == decision for life in lives))
    ]
    median = f"{np.median(found):,.0f}" if found else "–"
    return median + (f" ({', '.join(notes)})" if notes else "")


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    z = 1.96
    share, scale = hits / n, 1 + z * z / n
    middle = share + z * z / (2 * n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, (middle - reach) / scale), (middle + reach) / scale


if __name__ == "__main__":
    main()
