from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgwd.domain.split import WHOLE, advance, parts, phase, sticks_to_canary

shares = st.one_of(
    st.sampled_from([0, 0.5, 1, 5, 33.3, 50, 66.67, 99.5, 100]), st.floats(0, 100).map(lambda share: round(share, 6))
)
phases = st.integers(0, WHOLE - 1)


def run(start: int, each: list[int]) -> list[bool]:
    taken = []
    at = start
    for share_parts in each:
        to_canary, at = advance(at, share_parts)
        taken.append(to_canary)
    return taken


@given(shares, phases, st.integers(1, 400), st.data())
def test_any_window_is_within_one_of_the_share(share: float, start: int, count: int, data: st.DataObject) -> None:
    taken = run(start, [parts(share)] * count)
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first, count))
    exact = Fraction(str(share)) / 100 * (last - first)
    assert abs(sum(taken[first:last]) - exact) <= 1


@given(st.lists(shares, min_size=1, max_size=200), phases)
def test_changing_the_share_keeps_the_sum_within_one(each: list[float], start: int) -> None:
    taken = run(start, [parts(share) for share in each])
    exact = sum(Fraction(str(share)) for share in each) / 100
    assert abs(sum(taken) - exact) <= 1


@given(phases, st.integers(1, 50))
def test_nothing_and_everything_have_no_exception(start: int, count: int) -> None:
    assert not any(run(start, [parts(0)] * count))
    assert all(run(start, [parts(100)] * count))


@pytest.mark.parametrize(("share", "requests", "canary"), [(0.5, 2000, 10), (33.3, 10_000, 3330), (12.5, 800, 100)])
def test_fractions_of_a_percent_are_exact(share: float, requests: int, canary: int) -> None:
    assert sum(run(0, [parts(share)] * requests)) == canary


def test_workers_start_at_different_points() -> None:
    starts = {phase(f"w{index}", "chat") for index in range(16)}
    assert len(starts) == 16
    assert all(0 <= start < WHOLE for start in starts)
    assert phase("w1", "chat") == phase("w1", "chat")


@given(st.text(max_size=20), st.binary(max_size=40), shares, shares)
def test_raising_the_share_moves_keys_only_to_the_canary(model: str, key: bytes, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert sticks_to_canary(model, key, parts(low)) <= sticks_to_canary(model, key, parts(high))


@given(st.text(max_size=20), st.binary(max_size=40))
def test_sticky_ends_are_absolute(model: str, key: bytes) -> None:
    assert not sticks_to_canary(model, key, parts(0))
    assert sticks_to_canary(model, key, parts(100))


def test_sticky_keys_spread_as_the_share_says() -> None:
    taken = sum(sticks_to_canary("chat", b"user-%d" % index, parts(20)) for index in range(5000))
    assert 900 < taken < 1100


def test_sticky_choice_is_the_same_in_every_process() -> None:
    # Pinned: an upgrade of the gateway must not move sessions.
    assert [sticks_to_canary("chat", b"user-%d" % index, parts(50)) for index in range(8)] == [
        True,
        False,
        False,
        True,
        True,
        False,
        True,
        False,
    ]
