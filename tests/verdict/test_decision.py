import math
from copy import deepcopy

import msgspec
import pytest

from llmgwd.verdict.counts import ArmCounts
from llmgwd.verdict.decision import State, Wait, decide
from llmgwd.verdict.evidence import (
    LATEST_S,
    LOOK_S,
    MOST_OPEN,
    Evidence,
    add_canary,
    add_stable,
    begin,
    change_limits,
    promote_alpha,
    ripe,
)
from llmgwd.verdict.limits import KNOWN, Metric
from llmgwd.verdict.report import report
from llmgwd.verdict.settle import LONGEST_ASIDE, settle
from tests.verdict.traffic import OLD_S, Arm, Canary

STABLE = Arm()
DOWN = Arm(bad=1.0)
TIMED = {Metric.TTFT, Metric.TTFT_P95, Metric.SPEED}


def slower(ratio: float, part: float = 1.0) -> Arm:
    return Arm(ttft=lambda rng: STABLE.ttft(rng) * (ratio if rng.random() < part else 1.0))


def test_a_canary_that_is_down_is_worse_within_ten_requests() -> None:
    canary = Canary()
    canary.serves(STABLE, STABLE, requests=0, stable_requests=50)
    decision = canary.until(State.WORSE, DOWN, STABLE, requests=1)
    assert (decision.state, decision.blamed) == (State.WORSE, Metric.BAD_ANSWERS)
    assert canary.evidence.seen <= 10


def test_seven_in_ten_requests_a_hundred_times_slower_are_worse_by_sixty_canary_requests() -> None:
    canary = Canary()
    decision = canary.until(State.WORSE, slower(100, 0.7), STABLE, looks=12)
    assert decision.state is State.WORSE
    assert decision.blamed in (Metric.TTFT, Metric.TTFT_P95)
    assert canary.evidence.seen <= 60


@pytest.mark.parametrize(
    ("arm", "blamed"),
    [
        pytest.param(Arm(bad=0.3), {Metric.BAD_ANSWERS}, id="bad answers"),
        pytest.param(slower(3), {Metric.TTFT, Metric.TTFT_P95}, id="slow first tokens"),
        pytest.param(Arm(token=lambda rng: 2 * STABLE.token(rng)), {Metric.SPEED}, id="slow output"),
        pytest.param(Arm(cut=0.7), {Metric.LENGTH_LIMITED}, id="gibberish up to the length limit"),
    ],
)
def test_what_is_wrong_is_named(arm: Arm, blamed: set[Metric]) -> None:
    decision = Canary().until(State.WORSE, arm, STABLE, looks=60)
    assert decision.state is State.WORSE
    assert decision.blamed in blamed


@pytest.mark.parametrize("metric", [Metric.DEGENERATE, Metric.REJECTED])
def test_the_other_yes_no_metrics_are_judged_alike(metric: Metric) -> None:
    evidence = begin({})
    for look in range(20):
        counts = ArmCounts(arrived=5, ended=5, degenerate=3, rejected=0)
        if metric is Metric.REJECTED:
            counts = ArmCounts(arrived=5, ended=5, rejected=3)
        add_canary(evidence, look, 0.1, counts)
        add_stable(evidence, look, 0.1, ArmCounts(arrived=45, ended=45))
        settle(evidence, list(evidence.open), look)
    assert decide(evidence, OLD_S).blamed is metric


def test_a_canary_like_stable_is_fine_in_the_end_and_never_worse() -> None:
    canary = Canary()
    decision = canary.until(State.FINE, STABLE, STABLE, looks=1000, requests=10)
    assert decision.state is State.FINE
    assert canary.evidence.seen > 500


def test_fine_waits_for_age_and_for_a_load_that_compares() -> None:
    canary = Canary()
    canary.until(State.FINE, STABLE, STABLE, looks=1000, requests=10)
    young = decide(canary.evidence, 60.0)
    assert (young.state, young.waits) == (State.UNDECIDED, (Wait.AGE,))
    idle = decide(canary.evidence, OLD_S, uneven_load=True)
    assert (idle.state, idle.waits) == (State.UNDECIDED, (Wait.LOAD,))
    assert set(idle.open) == TIMED
    states = {shown.metric: shown.state for shown in report(canary.evidence, idle).metrics}
    assert {metric for metric, state in states.items() if state == State.UNDECIDED} == TIMED


def test_uneven_load_is_no_matter_where_no_times_are_judged() -> None:
    canary = Canary(evidence=begin({"ttft": None, "speed": None}))
    canary.until(State.FINE, STABLE, STABLE, looks=1000, requests=10)
    assert decide(canary.evidence, OLD_S, uneven_load=True).state is State.FINE


def test_a_canary_that_is_slow_though_it_idles_is_worse() -> None:
    canary = Canary()
    canary.until(State.WORSE, slower(3), STABLE, looks=60)
    assert decide(canary.evidence, OLD_S, uneven_load=True).state is State.WORSE


def embedded(canary: Canary, *, kinds: tuple[bool, bool] = (True, True), looks: int = 300) -> Canary:
    """`canary` after looks without any time; `kinds`: whether the requests of canary and stable were for embeddings."""
    for _ in range(looks):
        add_canary(canary.evidence, canary.look, 0.5, ArmCounts(arrived=20, ended=20, textless=20 * kinds[0]))
        add_stable(canary.evidence, canary.look, 0.5, ArmCounts(arrived=20, ended=20, textless=20 * kinds[1]))
        canary.look += 1
        canary.asked()
    return canary


def test_what_no_answer_of_either_arm_can_have_does_not_hold_up_promotion() -> None:
    decision = embedded(Canary()).asked()
    assert decision.state is State.FINE
    assert set(decision.absent) == TIMED


@pytest.mark.parametrize("kinds", [(False, True), (True, False), (False, False)])
def test_times_that_are_merely_missing_are_never_fine(kinds: tuple[bool, bool]) -> None:
    decision = embedded(Canary(), kinds=kinds).asked()
    assert decision.state is State.UNDECIDED
    assert set(decision.open) == TIMED
    assert decision.absent == ()


def test_one_request_for_text_is_enough_for_times_to_be_waited_for() -> None:
    canary = embedded(Canary())
    add_stable(canary.evidence, canary.look, 0.5, ArmCounts(arrived=1))
    assert set(canary.asked().open) == TIMED


def test_embeddings_on_one_arm_alone_or_with_only_times_judged_are_never_fine() -> None:
    alone = Canary()
    for look in range(300):
        add_canary(alone.evidence, look, 0.5, ArmCounts(arrived=20, ended=20, textless=20))
        settle(alone.evidence, list(alone.evidence.open), look)
    assert decide(alone.evidence, OLD_S).state is State.UNDECIDED
    off = dict.fromkeys(set(KNOWN) - {"ttft", "speed"})
    nothing_else = embedded(Canary(evidence=begin(off))).asked()
    assert (nothing_else.state, set(nothing_else.absent)) == (State.UNDECIDED, TIMED)


def test_a_canary_that_breaks_after_a_long_good_life_is_still_found_quickly() -> None:
    canary = Canary()
    for _ in range(500):
        canary.serves(STABLE, STABLE)
    before = canary.evidence.seen
    decision = canary.until(State.WORSE, DOWN, STABLE, requests=1)
    assert decision.state is State.WORSE
    assert canary.evidence.seen - before <= 15


def test_the_first_twenty_answers_do_not_speak_on_times() -> None:
    canary = Canary()
    for _ in range(4):
        assert canary.serves(slower(50), STABLE).state is State.UNDECIDED
    for _ in range(100):
        assert canary.serves(STABLE, STABLE).state is not State.WORSE


def test_a_bad_answer_counts_before_its_look_is_closed() -> None:
    canary = Canary()
    for _ in range(10):
        canary.serves(STABLE, STABLE)
    evidence = canary.evidence
    add_canary(evidence, canary.look, 0.1, ArmCounts(arrived=6, ended=5, bad=5))
    add_stable(evidence, canary.look, 0.1, ArmCounts(arrived=40, ended=10))
    assert ripe(evidence, (canary.look + 0.5) * LOOK_S) == []
    decision = decide(evidence, OLD_S)
    assert decision.state is State.WORSE
    assert "5 of " in report(evidence, decision).sentence


def test_a_look_is_closed_when_its_requests_have_ended_or_two_minutes_later() -> None:
    evidence = begin({})
    add_canary(evidence, 0, 0.1, ArmCounts(arrived=2, ended=1))
    add_stable(evidence, 0, 0.1, ArmCounts(arrived=3, ended=3))
    assert ripe(evidence, LOOK_S + 1) == []
    assert len(ripe(evidence, LOOK_S + LATEST_S)) == 1
    add_canary(evidence, 0, 0.1, ArmCounts(cancelled=1))
    assert ripe(evidence, LOOK_S - 1) == []
    assert len(ripe(evidence, LOOK_S)) == 1


def test_samples_that_come_after_their_look_was_closed_still_count() -> None:
    canary = Canary()
    for _ in range(10):
        canary.serves(STABLE, STABLE)
    for look in range(10):
        add_canary(canary.evidence, look, 0.1, ArmCounts(ended=2, bad=2))
    assert canary.asked().state is State.WORSE


def test_a_clock_that_was_set_back_leaves_no_look_open_for_ever() -> None:
    evidence = begin({})
    add_canary(evidence, 1000, 0.1, ArmCounts(arrived=1))
    assert len(ripe(evidence, 10 * LOOK_S)) == 1
    for look in range(3 * MOST_OPEN):
        add_canary(evidence, look, 0.1, ArmCounts(arrived=1))
    settle(evidence, ripe(evidence, 10 * LOOK_S), 10)
    assert len(evidence.open) <= MOST_OPEN


def test_a_share_of_nothing_compares_nothing() -> None:
    evidence = begin({})
    for look in range(50):
        add_canary(evidence, look, 0.0, ArmCounts(arrived=5, ended=5, bad=5))
        add_stable(evidence, look, 0.0, ArmCounts(arrived=5, ended=5))
        settle(evidence, list(evidence.open), look)
        add_canary(evidence, look + 1, 0.0, ArmCounts(arrived=5, ended=5, bad=5))
    decision = decide(evidence, OLD_S)
    assert decision.state is State.UNDECIDED
    report(evidence, decision)


def test_a_canary_that_has_all_requests_is_worse_within_ten_when_it_is_down() -> None:
    canary = Canary()
    assert canary.until(State.FINE, STABLE, STABLE, looks=1000, requests=10).state is State.FINE
    before = canary.evidence.seen
    canary.share = 1.0
    decision = canary.until(State.WORSE, DOWN, STABLE, requests=1)
    assert (decision.state, decision.blamed) == (State.WORSE, Metric.BAD_ANSWERS)
    assert canary.evidence.seen - before <= 10
    said = report(canary.evidence, decision).sentence
    assert "it had all requests, so it is judged on its own, and the limit is +1 point above the 0." in said


def test_a_canary_that_has_all_requests_fails_early_too_and_from_the_beginning() -> None:
    evidence = begin({})
    add_canary(evidence, 0, 1.0, ArmCounts(arrived=9, ended=9, bad=9))
    decision = decide(evidence, OLD_S)
    assert decision.state is State.WORSE
    assert "9 of 9 canary answers were bad" in report(evidence, decision).sentence


def test_a_canary_that_has_all_requests_is_never_fine_and_wins_nothing_for_later() -> None:
    canary = Canary(share=0.5)
    for _ in range(20):
        canary.serves(STABLE, STABLE)
    canary.share = 1.0
    before = canary.evidence.wealth[Metric.BAD_ANSWERS].log_behind
    for _ in range(500):
        decision = canary.serves(STABLE, STABLE, requests=20)
        assert decision.state is State.UNDECIDED
    assert Wait.SHARE in decision.waits
    assert "only bad answers are judged until it has fewer" in report(canary.evidence, decision).sentence
    assert canary.evidence.wealth[Metric.BAD_ANSWERS].log_behind <= before


@pytest.mark.parametrize("bad", [0.02, 0.05, 0.2])
def test_a_canary_as_good_as_stable_was_stays_while_stable_is_down(bad: float) -> None:
    arm = Arm(bad=bad)
    canary = Canary()
    for _ in range(100):
        assert canary.serves(arm, arm, requests=10).state is not State.WORSE
    for _ in range(60):
        add_canary(canary.evidence, canary.look, canary.share, arm.answers(canary.rng, 10))
        canary.look += 1
        assert canary.asked(stable_down=True).state is not State.WORSE
    add_canary(canary.evidence, canary.look, canary.share, DOWN.answers(canary.rng, 20))
    canary.look += 1
    decision = canary.asked(stable_down=True)
    assert decision.state is State.WORSE
    assert "that stable had before" in report(canary.evidence, decision).sentence


def test_what_stable_does_while_it_is_down_is_not_what_the_canary_is_held_to() -> None:
    canary = Canary()
    for _ in range(30):
        canary.serves(STABLE, STABLE)
    for _ in range(200):
        canary.serves(STABLE, DOWN)
    assert canary.evidence.shares[Metric.BAD_ANSWERS].centre < 0.02
    assert canary.until(State.WORSE, Arm(bad=0.3), DOWN, looks=20).state is State.WORSE


def test_stable_that_is_back_is_not_down_any_more_though_nothing_comes_in() -> None:
    canary = Canary()
    canary.serves(STABLE, STABLE)
    assert Wait.STABLE in canary.asked(stable_down=True).waits
    assert Wait.STABLE not in canary.asked(stable_down=False).waits


def test_times_of_stable_while_it_is_down_are_not_what_the_canary_is_held_to() -> None:
    canary = Canary()
    for _ in range(30):
        canary.serves(STABLE, STABLE)
    before = deepcopy(canary.evidence.times)
    add_canary(canary.evidence, canary.look, canary.share, STABLE.answers(canary.rng, 5))
    add_stable(canary.evidence, canary.look, canary.share, Arm(ttft=lambda _: 30.0).answers(canary.rng, 50))
    canary.look += 1
    canary.asked(stable_down=True)
    assert canary.evidence.times == before


def test_each_request_is_judged_by_the_share_it_was_split_by() -> None:
    canary = Canary()
    for share in (0.1, 0.5, 0.0, 0.05, 1.0, 0.25):
        canary.share = share
        for _ in range(10):
            canary.serves(STABLE, STABLE, stable_requests=30)
            canary.look -= 1
            canary.share = 0.3
            canary.serves(STABLE, STABLE, stable_requests=10)
            canary.share = share
    assert canary.evidence.open == []


def test_with_stable_down_the_canary_is_judged_alone_and_the_sentence_says_so() -> None:
    canary = Canary()
    for _ in range(20):
        decision = canary.serves(STABLE, DOWN)
        assert decision.state is State.UNDECIDED
    assert Wait.STABLE in decision.waits
    decision = canary.until(State.WORSE, DOWN, DOWN)
    assert decision.state is State.WORSE
    said = report(canary.evidence, decision).sentence
    assert "stable was down" in said
    assert said.endswith("if one and the same outage took both, start it again with --again")


def test_an_outage_of_both_that_has_just_begun_is_no_reason_to_roll_back() -> None:
    canary = Canary()
    for _ in range(50):
        canary.serves(STABLE, STABLE)
    assert canary.serves(DOWN, DOWN).state is not State.WORSE
    for _ in range(50):
        assert canary.serves(STABLE, STABLE).state is not State.WORSE


def test_stable_without_a_replica_is_down_before_it_fails_anything() -> None:
    canary = Canary()
    add_canary(canary.evidence, 0, 0.1, ArmCounts(arrived=9, ended=9, bad=9))
    canary.look = 1
    assert canary.asked(stable_down=True).state is State.WORSE


ODD = {
    "constant times": (Arm(ttft=lambda _: 0.2, token=lambda _: 0.02), Arm(ttft=lambda _: 0.2, token=lambda _: 0.02)),
    "constant times at the limit": (Arm(ttft=lambda _: 0.24), Arm(ttft=lambda _: 0.2)),
    "no errors on either": (Arm(bad=0.0, cut=0.0), Arm(bad=0.0, cut=0.0)),
    "all cancelled": (Arm(cancelled=1.0), Arm(cancelled=1.0)),
    "all cut on both": (Arm(cut=1.0), Arm(cut=1.0)),
    "impossible times": (Arm(ttft=lambda _: 0.0), Arm(ttft=lambda _: float("inf"))),
    "both down": (DOWN, DOWN),
}


@pytest.mark.parametrize("arms", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.99])
def test_degenerate_traffic_raises_nothing(arms: tuple[Arm, Arm], share: float) -> None:
    """Also when the split is nothing like the share."""
    canary = Canary(share=share)
    for look in range(120):
        decision = canary.serves(*arms, requests=3 * (look % 5 > 0), stable_requests=look % 7)
        assert report(canary.evidence, decision).sentence


@pytest.mark.parametrize("arms", [arms for name, arms in ODD.items() if name != "both down"], ids=lambda _: "")
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_degenerate_traffic_is_no_reason_to_roll_back(arms: tuple[Arm, Arm], share: float) -> None:
    canary = Canary(share=share)
    for look in range(150):
        assert canary.serves(*arms, requests=4 * (look % 5 > 0)).state is not State.WORSE


def test_a_session_that_sends_most_requests_to_one_side_is_no_reason_either() -> None:
    """Half of all answers are cut on both sides, and the canary has ten times its share of them."""
    chatty = Arm(cut=0.5)
    canary = Canary()
    for _ in range(200):
        assert canary.serves(chatty, chatty, requests=10, stable_requests=10).state is not State.WORSE


def test_one_side_alone_decides_nothing() -> None:
    nobody = Canary()
    for _ in range(50):
        assert nobody.serves(STABLE, STABLE, requests=0, stable_requests=40).state is State.UNDECIDED
    lonely = Canary()
    for _ in range(50):
        assert lonely.serves(Arm(bad=0.0), STABLE, requests=4, stable_requests=0).state is State.UNDECIDED


def test_no_traffic_moves_nothing() -> None:
    canary = Canary()
    decision = canary.asked()
    assert decision.state is State.UNDECIDED
    assert report(canary.evidence, decision).sentence == "no canary request has been judged yet"


def test_a_restart_changes_nothing() -> None:
    through, restarted = Canary(), Canary()
    for look in range(200):
        arm = STABLE if look < 150 else slower(1.8)
        first = through.serves(arm, STABLE)
        second = restarted.serves(arm, STABLE)
        assert first == second
        assert report(through.evidence, first) == report(restarted.evidence, second)
        restarted.evidence = msgspec.json.decode(msgspec.json.encode(restarted.evidence), type=Evidence)
    assert first.state is State.WORSE
    assert len(msgspec.json.encode(restarted.evidence)) < 32_768


def test_a_changed_limit_begins_that_metric_anew_at_half_its_budget() -> None:
    canary = Canary()
    for _ in range(50):
        canary.serves(STABLE, STABLE)
    evidence = canary.evidence
    before = {metric: wealth.budget for metric, wealth in evidence.wealth.items()}
    kept = evidence.wealth[Metric.BAD_ANSWERS].total
    assert change_limits(evidence, {"ttft": 1.1, "speed": KNOWN["speed"].default}) == ("ttft",)
    assert evidence.wealth[Metric.TTFT].budget == before[Metric.TTFT] / 2
    assert evidence.wealth[Metric.TTFT].total == 0
    assert evidence.wealth[Metric.TTFT].log_behind == 0
    assert evidence.wealth[Metric.TTFT_P95].budget == before[Metric.TTFT_P95] / 2
    assert evidence.wealth[Metric.BAD_ANSWERS].total == kept
    canary.serves(STABLE, STABLE)
    assert 0 < evidence.wealth[Metric.TTFT].spent <= evidence.wealth[Metric.TTFT].budget


def test_a_limit_can_be_switched_off_and_on_again_but_not_for_a_fresh_budget() -> None:
    evidence = begin({})
    before = evidence.wealth[Metric.REJECTED].budget
    for times in (2, 4, 8):
        change_limits(evidence, {"rejected": None})
        assert Metric.REJECTED not in evidence.wealth
        change_limits(evidence, {"rejected": 2.0})
        assert evidence.wealth[Metric.REJECTED].budget == before / times


def test_a_changed_limit_takes_twice_the_evidence_for_fine_and_can_still_be_met() -> None:
    evidence = begin({"ttft": None, "speed": None})
    for times in range(1, 13):
        change_limits(evidence, {"bad_answers": 20.0 + times})
        assert promote_alpha(evidence, Metric.BAD_ANSWERS) == evidence.alpha_promote / 2**times
    assert promote_alpha(evidence, Metric.REJECTED) == evidence.alpha_promote
    canary = Canary(evidence=evidence)
    for _ in range(300):
        decision = canary.serves(STABLE, STABLE, requests=10)
    assert decision.state is State.FINE
    assert evidence.wealth[Metric.BAD_ANSWERS].log_behind >= math.log(2**12 / evidence.alpha_promote)


def test_a_changed_limit_is_judged_from_the_next_look_on() -> None:
    canary = Canary()
    for _ in range(10):
        canary.serves(STABLE, STABLE)
    evidence = canary.evidence
    add_canary(evidence, canary.look, 0.1, ArmCounts(arrived=9, ended=9, rejected=9))
    change_limits(evidence, {"bad_answers": 2.0})
    add_canary(evidence, canary.look, 0.1, ArmCounts(arrived=9, ended=9, bad=9))
    assert Metric.BAD_ANSWERS not in (decide(evidence, OLD_S).blamed,)
    canary.look += 1
    canary.asked()
    assert evidence.wealth[Metric.BAD_ANSWERS].total == 0
    assert evidence.wealth[Metric.REJECTED].total > 1
    canary.serves(DOWN, STABLE)
    assert evidence.wealth[Metric.BAD_ANSWERS].total > 1


def test_with_every_limit_off_nothing_is_judged() -> None:
    canary = Canary(evidence=begin(dict.fromkeys(KNOWN)))
    for _ in range(20):
        decision = canary.serves(DOWN, STABLE)
    assert decision.state is State.UNDECIDED
    assert "every limit is off" in report(canary.evidence, decision).sentence


def test_looks_without_a_canary_request_wait_for_one_that_has_it() -> None:
    canary = Canary()
    for _ in range(30):
        canary.serves(STABLE, STABLE)
    before = canary.evidence.wealth[Metric.BAD_ANSWERS].total
    for _ in range(LONGEST_ASIDE):
        canary.serves(STABLE, STABLE, requests=0, stable_requests=3)
    assert canary.evidence.open == []
    assert canary.evidence.wealth[Metric.BAD_ANSWERS].total == before
    figures = {each.metric: each for each in report(canary.evidence, canary.asked()).metrics}
    assert figures[Metric.BAD_ANSWERS].stable_n == 30 * 45 + LONGEST_ASIDE * 3
    canary.serves(STABLE, STABLE, requests=1, stable_requests=3)
    assert canary.evidence.aside is None
    assert canary.evidence.life["bad_answers"].stable.n == 30 * 45 + (LONGEST_ASIDE + 1) * 3
    assert canary.evidence.wealth[Metric.BAD_ANSWERS].total != before


def test_stable_is_known_to_be_down_also_while_the_canary_has_no_request() -> None:
    canary = Canary()
    for _ in range(30):
        canary.serves(STABLE, STABLE)
    add_stable(canary.evidence, canary.look, 0.1, STABLE.answers(canary.rng, 5))
    canary.look += 1
    assert Wait.STABLE in canary.asked(stable_down=True).waits


def test_what_waits_is_bet_on_by_itself_under_another_share_or_after_a_while() -> None:
    canary = Canary()
    life = canary.evidence.life["bad_answers"]
    canary.serves(STABLE, STABLE, requests=0, stable_requests=3)
    canary.share = 0.2
    canary.serves(STABLE, STABLE, requests=0, stable_requests=4)
    assert life.stable.n == 3
    canary.look += LONGEST_ASIDE
    canary.serves(STABLE, STABLE, requests=0, stable_requests=5)
    assert life.stable.n == 7
