import random
from copy import deepcopy

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from llmgwd.verdict.counts import ArmCounts
from llmgwd.verdict.decision import decide
from llmgwd.verdict.evidence import Evidence, add_canary, add_stable, begin
from llmgwd.verdict.report import report
from llmgwd.verdict.settle import settle

CELLS = st.dictionaries(st.integers(-200, 200), st.integers(1, 5), max_size=4)
SMALL = st.integers(0, 6)


@st.composite
def counts(draw: st.DrawFn) -> ArmCounts:
    ended = draw(SMALL)
    part = st.integers(0, ended)
    return ArmCounts(
        arrived=draw(SMALL),
        ended=ended,
        cancelled=draw(SMALL),
        bad=draw(part),
        length_limited=draw(part),
        degenerate=draw(part),
        rejected=draw(part),
        keys=draw(SMALL),
        ttft=draw(CELLS),
        token_time=draw(CELLS),
    )


DELTAS = st.lists(st.tuples(st.integers(0, 3), st.booleans(), counts()), max_size=20)


@given(DELTAS, st.randoms(use_true_random=False))
def test_deltas_add_up_in_any_order_to_one_stream(
    deltas: list[tuple[int, bool, ArmCounts]], rng: random.Random
) -> None:
    shuffled = list(deltas)
    rng.shuffle(shuffled)
    assert after(deltas) == after(shuffled)
    assert after(deltas) == after(merged(deltas))


def after(deltas: list[tuple[int, bool, ArmCounts]]) -> tuple[object, ...]:
    """What is known and said once every look has been closed."""
    evidence = begin({})
    for look, canary, delta in deltas:
        (add_canary if canary else add_stable)(evidence, look, 0.25, delta)
    evidence.first = 0
    for each in sorted(evidence.open, key=lambda each: each.number):
        settle(evidence, [each], each.number)
    decision = decide(evidence, 1e6)
    return rounded(evidence), decision, report(evidence, decision)


def rounded(evidence: Evidence) -> object:
    """Sums of floats differ in their last digits with the order in which a histogram was filled."""
    return cut(msgspec.to_builtins(evidence))


def cut(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: cut(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [cut(each) for each in value]
    return value


def merged(deltas: list[tuple[int, bool, ArmCounts]]) -> list[tuple[int, bool, ArmCounts]]:
    sums: dict[tuple[int, bool], ArmCounts] = {}
    for look, canary, delta in deltas:
        if (look, canary) in sums:
            sums[look, canary].add(delta)
        else:
            sums[look, canary] = deepcopy(delta)
    return [(look, canary, delta) for (look, canary), delta in sums.items()]


def test_a_request_runs_until_it_has_ended_or_its_client_has_left() -> None:
    counts = ArmCounts(arrived=5)
    counts.add(ArmCounts(ended=2, cancelled=1))
    assert counts.running == 2
    counts.add(ArmCounts(ended=4))
    assert counts.running == 0
