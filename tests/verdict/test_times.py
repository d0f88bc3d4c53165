import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgwd.verdict.times import (
    FRESH,
    LARGE,
    LEVELS,
    NORMAL,
    NORMAL_RANGE,
    RANK_BEHIND,
    RANK_SIZES,
    SKEWED,
    TAIL,
    TAIL_BEHIND,
    TAIL_SIZES,
    Ranks,
    TimesRecord,
    boldest,
    rank_logs,
    sums_of,
    tail_logs,
)

LOOK = st.lists(st.integers(0, LEVELS - 1), max_size=30)
RATIOS = st.sampled_from([0.001, 0.05, 1 / 9, 1.0, 4.0])


def played(by_level: tuple[float, ...], centre: float, size: float, ratio: float, looks: list[list[int]]) -> float:
    """The log factor of one bet, a time after the other."""
    canary, stable = looks
    factors = [1 + size * (by_level[level] - centre) for level in canary]
    factors += [1 - size * ratio * (by_level[level] - centre) for level in stable]
    return math.fsum(map(math.log, factors))


@given(RATIOS, st.lists(LOOK, max_size=5), LOOK, LOOK, LOOK)
def test_a_look_is_worth_what_its_times_are_worth_one_after_the_other(
    ratio: float, before: list[list[int]], strict: list[int], lenient: list[int], stable: list[int]
) -> None:
    record = TimesRecord()
    for levels in before:
        record.learn_scores(sums_of(levels))
    normal, skewed, tail = (
        round(recent.value * parts) / parts
        for recent, parts in ((record.normal, 128), (record.skewed, 128), (record.tail, 1024))
    )
    unit = NORMAL_RANGE / (1 + ratio)
    games = [
        (rank_logs, NORMAL, normal, [size * unit for size in RANK_SIZES], [size * unit for size in RANK_BEHIND]),
        (rank_logs, SKEWED, skewed, [LARGE / (skewed * (1 + ratio))], []),
        (
            tail_logs,
            TAIL,
            tail,
            [size / (tail * (1 - tail) * (1 + ratio)) for size in TAIL_SIZES],
            [size / ((1 - tail) * (1 + ratio)) for size in TAIL_BEHIND],
        ),
    ]
    expected: dict[object, tuple[list[float], list[float]]] = {}
    for game, by_level, centre, up, down in games:
        most, least = boldest(ratio, centre)
        against, behind = expected.setdefault(game, ([], []))
        against += [played(by_level, centre, min(size, most), ratio, [strict, stable]) for size in up]
        behind += [played(by_level, centre, -min(size, least), ratio, [lenient, stable]) for size in down]
    for game in (rank_logs, tail_logs):
        for ours, plain in zip(game(record, ratio, strict, lenient, stable), expected[game], strict=True):
            assert ours == pytest.approx(plain, abs=1e-9)


@given(st.dictionaries(st.integers(-40, 40), st.integers(1, 9), min_size=1), st.integers(-400, 400), st.integers(1, 3))
def test_a_time_has_the_level_of_its_place_among_the_earlier_ones(
    reference: dict[int, int], index: int, count: int
) -> None:
    ranks = Ranks(reference)
    levels = ranks.levels({index: count})
    assert len(levels) == count
    coarse, within = divmod(index, 8)
    below: float = sum(weight for bucket, weight in reference.items() if bucket < coarse)
    below += reference.get(coarse, 0) * (within + 0.5) / 8
    exact = LEVELS * below / sum(reference.values())
    assert abs(min(LEVELS - 1, math.floor(exact)) - levels[0]) <= (1 if abs(exact - round(exact)) < 1e-6 else 0)


def test_what_is_fresh_joins_the_reference_once_it_is_enough_to_move_ranks() -> None:
    record = TimesRecord()
    record.learn_times({0: 10}, 10)
    assert record.ranks is None
    record.learn_times({5: 30 * FRESH - 10}, 30 * FRESH - 10)
    ranks = record.ranks
    assert ranks is not None
    record.learn_times({2: 29}, 29)
    assert record.ranks is ranks
    record.learn_times({2: 1}, 1)
    assert record.ranks is not ranks
    assert record.weight == 30 * FRESH + 30


def test_the_reference_forgets_by_halves_so_that_it_follows_stable() -> None:
    record = TimesRecord()
    for _ in range(100):
        record.learn_times({0: 500}, 500)
        assert record.weight < 5000
    for _ in range(20):
        record.learn_times({9: 500}, 500)
    assert record.reference[9] > 0.9 * record.weight
