from llmgwd.verdict.counts import ArmCounts
from llmgwd.verdict.decision import State
from llmgwd.verdict.evidence import add_canary, add_stable
from llmgwd.verdict.limits import Metric
from llmgwd.verdict.report import Report, report
from tests.verdict.traffic import Arm, Canary

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
