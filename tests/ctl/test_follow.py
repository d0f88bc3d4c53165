"""The decisions behind a followed job, and figures in words."""

from datetime import UTC, datetime, timedelta

import pytest

from llmgw_ctl.follow import Pace, changed_steps, failure_of, seconds_left, step_line
from llmgw_ctl.options import share
from llmgw_ctl.quick import taken
from llmgw_ctl.render.words import count, duration, moment, move, percent, size
from llmgwd.protocol.states import JobState, StepState
from tests.ctl.house import CANDIDATE_ORIGIN, CHAT_ORIGIN, NOW, PENDING_JOB, course, ended, with_step


def test_only_steps_whose_state_changed_are_news() -> None:
    running = with_step(PENDING_JOB, 0, state=StepState.RUNNING)
    both = with_step(with_step(running, 0, state=StepState.DONE), 1, state=StepState.RUNNING)
    assert changed_steps(None, PENDING_JOB) == []
    assert [step.name for step in changed_steps(None, running)] == ["repository"]
    assert [step.name for step in changed_steps(running, both)] == ["repository", "weights"]
    assert changed_steps(both, both) == []
    skipped = with_step(with_step(both, 2, state=StepState.SKIPPED), 3, state=StepState.SKIPPED, detail="no need")
    assert [step.name for step in changed_steps(both, skipped)] == ["catalog"]


def test_a_step_s_line_has_its_detail_and_its_time() -> None:
    job = with_step(
        PENDING_JOB, 1, state=StepState.DONE, detail="98.4 MB", started=NOW, ended=NOW + timedelta(seconds=12)
    )
    assert step_line(job.steps[1], NOW) == "  weights: done, 98.4 MB (12 s)"


def test_pace_forgets_what_is_long_past_and_starts_anew_with_another_file() -> None:
    pace = Pace()
    pace.saw(0, 0)
    assert pace.per_second() is None
    pace.saw(1, 1000)
    assert pace.per_second() == 1000
    for second in range(2, 20):
        pace.saw(second, 1000 + 10 * second)
    assert pace.per_second() == pytest.approx(10)
    pace.saw(21, 0)
    assert pace.per_second() is None


@pytest.mark.parametrize(
    ("done", "total", "rate", "left"),
    [(10, 20, 5.0, 2), (10, None, 5.0, None), (10, 20, None, None), (10, 20, 0.0, None)],
)
def test_time_left(done: int, total: int | None, rate: float | None, left: float | None) -> None:
    assert seconds_left(done, total, rate) == left


def test_a_failure_without_a_hint_points_to_the_job() -> None:
    failure = failure_of(ended(PENDING_JOB, JobState.FAILED, "the disk is full"))
    assert failure and failure.message == "canary of chat failed: the disk is full"
    assert failure.hint == f"`llmgw ctl jobs show {PENDING_JOB.id}` has all its steps"
    *_, done = course()
    assert failure_of(done) is None


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (None, "–"),
        (0, "0 bytes"),
        (999, "999 bytes"),
        (98_400_000, "93.8 MiB"),
        (2**30 - 1, "1.0 GiB"),
        (5e15, "4547.5 TiB"),
    ],
)
def test_sizes(size_bytes: float | None, words: str) -> None:
    assert size(size_bytes) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1, "0.0 s"), (0.42, "0.4 s"), (41.4, "41 s"), (59.7, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min"),
     (356400, "4 d 3 h")],
)  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_moments_are_local_and_dated_unless_today() -> None:
    now = datetime(2026, 3, 4, 12, tzinfo=UTC)
    assert moment(now, now) == now.astimezone().strftime("%H:%M:%S")
    assert moment(now - timedelta(days=2), now).startswith("2026-03-02 ")


def test_figures() -> None:
    assert [percent(None), percent(10.0), percent(9.951), percent(0)] == ["–", "10 %", "10 %", "0 %"]
    assert count(1804) == "1,804"
    assert move(CHAT_ORIGIN, CANDIDATE_ORIGIN) == "acme/chat-gguf 5f3a9c1 → 9b1c2d3"


@pytest.mark.parametrize(
    ("annotation", "value", "ready"),
    [(str, "a", "a"), (str, None, None), (float, "2.5", 2.5), (int, "3", 3), (bool, True, True), (int, 20, 20),
     (list[str], ("a", "b"), ["a", "b"]), (list[str], None, None)],
)  # fmt: skip
def test_plain_values_are_taken_as_they_stand(annotation: object, value: object, ready: object) -> None:
    assert taken(annotation, value) == ready


@pytest.mark.parametrize(("annotation", "value"), [(int, "x"), (float, "lots"), (bool, "yes"), (dict, "a")])
def test_what_is_not_plain_is_left_to_typer(annotation: object, value: object) -> None:
    with pytest.raises(ValueError):
        taken(annotation, value)


@pytest.mark.parametrize("value", [0, 0.5, 100])
def test_shares_within_bounds(value: float) -> None:
    assert share(value) == value
