import random

from llmgwd.verdict.counts import ArmCounts
from llmgwd.verdict.decision import State, decide
from llmgwd.verdict.evidence import add_canary, add_stable, begin, ripe
from llmgwd.verdict.intervals import difference_interval
from llmgwd.verdict.limits import Metric
from llmgwd.verdict.report import Report, report
from llmgwd.verdict.settle import settle
from tests.verdict.traffic import OLD_S, Arm, Canary

STABLE = Arm()


def explained(canary: Canary, state: State, arm: Arm, looks: int = 400, requests: int = 5) -> Report:
    decision = canary.until(state, arm, STABLE, looks=looks, requests=requests)
    assert decision.state is state
    return report(canary.evidence, decision)


def test_bad_answers_are_told_with_both_counts_the_interval_and_the_limit() -> None:
    said = explained(Canary(), State.WORSE, Arm(bad=1.0)).sentence
    assert said == (
        "5 of 5 canary answers were bad (100.0 %) against 0 of 45 on stable (0.0 %); "
        "the difference is between +18.0 points and +100.0 points, the limit is +1 point"
    )


def test_times_are_told_in_their_unit_with_their_ratio() -> None:
    said = explained(Canary(), State.WORSE, Arm(ttft=lambda rng: 3 * STABLE.ttft(rng))).sentence
    assert "time to first token" in said
    assert " ms on " in said
    assert " canary answers against " in said
    assert "; the limit is 1.2 ×)" in said
    slow = explained(Canary(), State.WORSE, Arm(token=lambda rng: 2 * STABLE.token(rng))).sentence
    assert "median output speed" in slow
    assert "tokens/s on " in slow
    assert "; the limit is 0.8 ×)" in slow


def test_late_trouble_is_told_since_when() -> None:
    canary = Canary()
    for _ in range(300):
        canary.serves(STABLE, STABLE)
    told = explained(canary, State.WORSE, Arm(bad=1.0))
    assert told.sentence.startswith("since 02:2")
    blamed = next(shown for shown in told.metrics if shown.metric is Metric.BAD_ANSWERS)
    assert blamed.since_look is not None
    assert 280 <= blamed.since_look <= 300
    assert blamed.canary_n < canary.evidence.seen / 10


def test_sessions_are_told() -> None:
    canary = Canary()
    add_canary(canary.evidence, 0, 0.1, ArmCounts(keys=1))
    add_stable(canary.evidence, 0, 0.1, ArmCounts(keys=30))
    assert explained(canary, State.WORSE, Arm(bad=1.0)).sentence.endswith(
        "; in 1 session on the canary and 30 on stable"
    )


def test_requests_of_busy_sessions_that_are_not_counted_are_told() -> None:
    canary = Canary()
    add_canary(canary.evidence, 0, 0.1, ArmCounts(left_out=980))
    add_stable(canary.evidence, 0, 0.1, ArmCounts(left_out=3))
    said = "not counted are 980 canary and 3 stable requests, beyond the first 20 an hour of one session"
    canary.serves(STABLE, STABLE)
    assert said in report(canary.evidence, canary.asked()).sentence
    assert said in explained(canary, State.WORSE, Arm(bad=1.0)).sentence


def test_what_is_worse_by_several_limits_together_names_them_all_and_claims_none_alone() -> None:
    """Each of three metrics is a little beyond its limit, in a life where only their sum shows it."""
    for seed in range(100):
        rng = random.Random(seed)
        evidence = begin({"ttft": None, "speed": None})
        for look in range(300):
            bad, odd, refused = (sum(rng.random() < rate for _ in range(10)) for rate in (0.04, 0.06, 0.06))
            add_canary(evidence, look, 0.1, ArmCounts(arrived=10, ended=10, bad=bad, degenerate=odd, rejected=refused))
            add_stable(evidence, look, 0.1, ArmCounts(arrived=90, ended=90))
            settle(evidence, ripe(evidence, (look + 1) * evidence.look_s), look)
            decision = decide(evidence, OLD_S)
            if decision.state is State.WORSE:
                break
        if len(decision.worse_by) > 1:
            break
    assert len(decision.worse_by) > 1
    told = report(evidence, decision)
    assert told.sentence.startswith("worse by several limits together, by none alone: ")
    shown = {each.metric: each for each in told.metrics}
    richest = max(evidence.wealth.values(), key=lambda wealth: wealth.total)
    assert richest.total < 1 / evidence.alpha
    for metric in decision.worse_by:
        assert shown[metric].state == State.WORSE
        pair = evidence.life[metric]
        whole = difference_interval(
            (pair.canary.hits, pair.canary.n), (pair.stable.hits, pair.stable.n), evidence.alpha
        )
        assert shown[metric].since_look is not None or (shown[metric].low, shown[metric].high) == whole


def test_the_warm_up_is_not_spoken_of_where_no_times_are_judged() -> None:
    canary = Canary(evidence=begin({"ttft": None, "speed": None}))
    canary.serves(STABLE, STABLE)
    assert "times count" not in report(canary.evidence, canary.asked()).sentence


def test_undecided_says_what_is_open_and_how_much_is_needed() -> None:
    canary = Canary()
    canary.serves(STABLE, STABLE)
    decision = canary.asked()
    said = report(canary.evidence, decision).sentence
    assert said.startswith("undecided after 5 canary requests; not known to be within the limit yet: bad answers")
    assert "times count after the first 20 answers" in said
    for _ in range(60):
        decision = canary.serves(STABLE, STABLE)
    told = report(canary.evidence, decision)
    assert told.need.requests
    assert told.need.seconds
    assert "more canary requests needed, " in told.sentence
    assert told.sentence.endswith("at today's rate")


def test_fine_shows_both_values_of_every_metric() -> None:
    told = explained(Canary(), State.FINE, STABLE, looks=1000, requests=10)
    assert told.sentence.startswith("within every limit after ")
    assert told.need.requests == 0
    for shown in told.metrics:
        assert shown.state == "within"
        assert shown.limit is not None
        assert shown.high is not None
        assert shown.high <= shown.limit


def test_the_interval_never_contradicts_the_verdict() -> None:
    for arm in (Arm(bad=0.08), Arm(ttft=lambda rng: 1.6 * STABLE.ttft(rng)), Arm(cut=0.3)):
        for shown in explained(Canary(), State.WORSE, arm, looks=1500).metrics:
            if shown.state == State.WORSE:
                assert shown.low is not None
                assert shown.limit is not None
                assert shown.low >= shown.limit


def test_uneven_load_is_told_with_both_loads_and_what_to_do() -> None:
    canary = Canary()
    canary.until(State.FINE, STABLE, STABLE, looks=1000, requests=10)
    load = canary.evidence.load
    load.weight = load.canary.known = load.stable.known = 10
    load.canary.busy, load.stable.busy = 0.8, 9.7
    said = report(canary.evidence, decide(canary.evidence, OLD_S, uneven_load=True)).sentence
    assert "its times were measured on an engine that was idle (8.0 % of its slots busy)" in said
    assert "while stable's was full (97.0 %), so" in said
    assert said.endswith("raise its share, or take them as they are with `limits` and --ignore-load")


def test_a_metric_that_never_shows_is_told_with_how_to_take_it_out() -> None:
    canary = Canary(share=0.5)
    for _ in range(10):
        for add in (add_canary, add_stable):
            add(canary.evidence, canary.look, 0.5, ArmCounts(arrived=20, ended=20, ttft={0: 20}))
        canary.look += 1
        canary.asked()
        canary.evidence.load.judged += 20
        said = report(canary.evidence, canary.asked()).sentence
        told = "no canary answer has shown a median output speed; where none can, --limit speed=off" in said
        assert told is (canary.evidence.load.judged >= 100)


def test_what_no_answer_can_have_is_told_until_the_end() -> None:
    canary = Canary(share=0.5)
    for _ in range(300):
        for add in (add_canary, add_stable):
            add(canary.evidence, canary.look, 0.5, ArmCounts(arrived=20, ended=20, textless=20))
        canary.look += 1
        decision = canary.asked()
        told = report(canary.evidence, decision)
        if canary.look == 3:
            assert (told.state, told.metrics[1].state) == (State.UNDECIDED, "absent")
            assert "no request asks for text, so no answer of either side has a median time to first token" in (
                told.sentence
            )
            assert "within the limit yet: bad answers, answers cut at the length limit" in told.sentence
    assert told.state is State.FINE
    assert "no request asks for text" in told.sentence
    assert "unknown" not in told.sentence
