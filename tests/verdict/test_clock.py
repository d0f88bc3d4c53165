"""A wall clock that is set forward or back: looks are numbered by it, and each request must be judged once."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgwd.verdict.counts import ArmCounts
from llmgwd.verdict.evidence import LATEST_S, LOOK_S, WARM_UP, Evidence, add_canary, add_stable, begin, look_at, ripe
from llmgwd.verdict.guard import BLOCK_S, Guard
from llmgwd.verdict.settle import settle
from llmgwd.verdict.times import sums_of

SHARE = 0.25
STEPS_S = [LOOK_S, 7.0, -7.0, -LOOK_S, -100.0, 100.0, -LATEST_S - 2 * LOOK_S, -3600.0, 3600.0, -86400.0, 86400.0]


def answers(n: int, *, arrived: int | None = None) -> ArmCounts:
    return ArmCounts(arrived=n if arrived is None else arrived, ended=n, ttft={-200: n}, token_time={-700: n})


def closed(evidence: Evidence, now_s: float) -> None:
    settle(evidence, ripe(evidence, now_s), look_at(evidence, now_s))


def judged(evidence: Evidence) -> tuple[int, int]:
    life = evidence.life["bad_answers"]
    return life.canary.n, life.stable.n + (evidence.aside.stable.ended if evidence.aside else 0)


@given(st.lists(st.tuples(st.sampled_from(STEPS_S), st.booleans(), st.integers(0, 2)), max_size=40))
def test_each_request_is_judged_once_however_the_clock_jumps(steps: list[tuple[float, bool, int]]) -> None:
    evidence, now_s, fed, running = begin({}), 1e9, [0, 0], []
    for step_s, late, canary in steps:
        now_s += step_s
        look = look_at(evidence, now_s)
        add_stable(evidence, look, SHARE, answers(3))
        add_canary(evidence, look, SHARE, answers(canary, arrived=canary + late))
        fed[0] += canary
        fed[1] += 3
        if late:
            running.append(look)
        closed(evidence, now_s)
    for look in running:
        add_canary(evidence, look, SHARE, answers(1, arrived=0))
    fed[0] += len(running)
    for _ in range(2):
        now_s += LATEST_S + 2 * LOOK_S
        closed(evidence, now_s)
    assert evidence.open == []
    assert judged(evidence) == tuple(fed)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_times_are_judged_on_after_the_clock_was_set(step_s: float) -> None:
    evidence, now_s = begin({}), 1e9
    for moved_s in (LOOK_S, step_s, LOOK_S, LOOK_S):
        now_s += moved_s
        add_stable(evidence, look_at(evidence, now_s), SHARE, answers(60))
        add_canary(evidence, look_at(evidence, now_s), SHARE, answers(WARM_UP))
        closed(evidence, now_s)
    now_s += LATEST_S + 2 * LOOK_S
    closed(evidence, now_s)
    assert evidence.life["ttft"].canary.n >= WARM_UP


def test_a_block_of_the_guard_ends_also_when_the_clock_was_set_back() -> None:
    guard, rng = Guard(), random.Random(1)
    for first in (10_000, 5_000):
        for look in range(first, first + round(2.5 * BLOCK_S / LOOK_S)):
            guard.see(look, LOOK_S, *(sums_of([rng.randrange(100) for _ in range(times)]) for times in (3, 20)))
    assert len(guard.gaps) >= 4
