import math
import random

from llmgwd.verdict.guard import BLOCK_S, Guard, long_run_variance, without_jump
from llmgwd.verdict.times import Sums, sums_of

LOOK_S = 30.0


def level(score: float) -> int:
    return min(99, max(0, round(score)))


def watched(
    guard: Guard, rng: random.Random, *, blocks: int, canary: int, drift: float = 0.0, gap: float = 0.0
) -> None:
    """drift: by how much the canary's scores stray in a block, in hundredths of rank; gap: by how much all do."""
    for look in range(round(blocks * BLOCK_S / LOOK_S)):
        if look % 10 == 0:
            off = gap + rng.gauss(0, drift)
        guard.see(look, LOOK_S, scores(rng, canary, off), scores(rng, 40, 0.0))


def scores(rng: random.Random, n: int, off: float) -> Sums:
    return sums_of([level(rng.uniform(0, 99) + off) for _ in range(n)])


def test_steady_arms_are_taken_at_their_word() -> None:
    for gap in (0.0, 20.0):
        guard = Guard()
        watched(guard, random.Random(1), blocks=40, canary=3, gap=gap)
        assert guard.overstated < 1.1


def test_a_replica_that_wanders_is_taken_to_say_less() -> None:
    guard = Guard()
    watched(guard, random.Random(1), blocks=40, canary=12, drift=15.0)
    assert guard.overstated > 3


def test_many_requests_in_a_few_minutes_say_no_more_until_the_gap_has_shown_to_be_steady() -> None:
    guard = Guard()
    watched(guard, random.Random(1), blocks=2, canary=25)
    assert guard.overstated > 5
    watched(guard, random.Random(2), blocks=90, canary=25)
    assert guard.overstated < 2


def test_trouble_that_begins_is_not_taken_for_wandering() -> None:
    guard = Guard()
    watched(guard, random.Random(1), blocks=40, canary=3)
    before = guard.overstated
    watched(guard, random.Random(2), blocks=4, canary=3, gap=40.0)
    assert guard.overstated <= before * 1.1


def test_trouble_that_goes_on_is_not_taken_for_wandering_either() -> None:
    guard = Guard()
    watched(guard, random.Random(1), blocks=36, canary=12)
    before = guard.overstated
    for more in range(12):
        watched(guard, random.Random(2 + more), blocks=3, canary=12, gap=40.0)
        assert guard.overstated <= before * 1.3


def test_a_second_jump_is_a_replica_that_wanders() -> None:
    guard = Guard()
    for gap in (0.0, 40.0, 0.0, 40.0):
        watched(guard, random.Random(1), blocks=8, canary=12, gap=gap)
    assert guard.overstated > 3


def test_blocks_with_hardly_a_request_say_nothing() -> None:
    guard = Guard()
    for look in range(100):
        guard.see(look, LOOK_S, Sums(), sums_of([50]))
    assert guard.gaps == []
    assert guard.overstated == 1.0


def test_the_long_run_variance_of_neighbours_that_move_together_is_larger() -> None:
    assert long_run_variance([]) == 1.0
    assert long_run_variance([1.0, -1.0] * 20) < 0.5
    assert long_run_variance(([1.0] * 5 + [-1.0] * 5) * 4) > 1.8


def test_before_blocks_have_shown_anything_it_is_the_traffic_that_says_how_much_is_believed() -> None:
    believed = []
    for canary in (3, 12, 40):
        guard = Guard()
        watched(guard, random.Random(3), blocks=1, canary=canary)
        believed.append(10 * canary / guard.overstated)
    # Requests of one block: few are taken at their word, and of many not even as many as those.
    assert believed[0] == 30
    assert believed[1] < 40
    assert believed[2] < 30


def test_a_drift_of_half_an_hour_is_seldom_taken_for_a_jump() -> None:
    rng = random.Random(1)
    jumps = 0
    for _ in range(100):
        kept, off, gaps = math.exp(-1 / 6), rng.gauss(0, 2), []
        for _ in range(60):
            gaps.append(off + rng.gauss(0, 1))
            off = kept * off + rng.gauss(0, 2 * math.sqrt(1 - kept * kept))
        mean = math.fsum(gaps) / len(gaps)
        jumps += without_jump(gaps) != [gap - mean for gap in gaps]
    assert jumps < 30


def test_a_jump_between_steady_sides_is_taken_out() -> None:
    rng = random.Random(1)
    gaps = [rng.gauss(8.0 * (block >= 30), 1) for block in range(40)]
    assert abs(math.fsum(without_jump(gaps)[:30])) < 1e-9
    assert long_run_variance(gaps) < 2
