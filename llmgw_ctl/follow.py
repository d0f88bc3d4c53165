"""What a followed job shows: which steps changed, how fast it goes, and what its end means. Draws nothing."""

from collections import deque
from datetime import datetime

from llmgw_ctl.failures import CommandError
from llmgw_ctl.render.words import duration
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.states import JobState, StepState
from llmgwd.protocol.views import JobView, StepView

PACE_WINDOW_S = 8.0


def took_s(started: datetime | None, ended: datetime | None, now: datetime) -> float | None:
    """Seconds from start to end, or to now; None before the start."""
    return None if started is None else ((ended or now) - started).total_seconds()


def changed_steps(before: JobView | None, after: JobView) -> list[StepView]:
    """The steps with another state than before, or at something else, but for those skipped without a word on why."""
    known = {step.name: (step.state, step.detail) for step in before.steps} if before else {}
    fresh = (StepState.PENDING, "")
    changed = [step for step in after.steps if (step.state, step.detail) != known.get(step.name, fresh)]
    return [step for step in changed if step.detail or step.state is not StepState.SKIPPED]


def step_line(step: StepView, now: datetime) -> str:
    """One step's change on one line: `weights: done, 93.8 MiB (12 s)`."""
    words = f"  {step.name}: {step.state}"
    if step.detail:
        words += f", {step.detail}"
    took = took_s(step.started, step.ended, now)
    if took is not None and step.state is not StepState.RUNNING:
        words += f" ({duration(took)})"
    return words


class Pace:
    """Units per second over the last PACE_WINDOW_S; moments are seconds of any clock that only grows."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def saw(self, now: float, done: int) -> None:
        if self._seen and done < self._seen[-1][1]:
            # Another file or another step counts from its own start.
            self._seen.clear()
        self._seen.append((now, done))
        while now - self._seen[0][0] > PACE_WINDOW_S and len(self._seen) > 2:
            self._seen.popleft()

    def per_second(self) -> float | None:
        """None until it has been seen to move."""
        if len(self._seen) < 2:
            return None
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / (last - first) if last > first and after > before else None


def seconds_left(done: int, total: int | None, per_second: float | None) -> float | None:
    if total is None or not per_second or done > total:
        return None
    return (total - done) / per_second


def failure_of(job: JobView) -> CommandError | None:
    """What to tell of a job that ended other than done: which step failed, why, what to do next."""
    if job.state is JobState.DONE:
        return None
    what = f"{job.kind} of {job.model}"
    if job.state is JobState.CANCELLED:
        return CommandError(f"{what} was cancelled{_because(job.outcome)}", job.hint, code="cancelled")
    reasons = [job.outcome] if job.outcome else []
    failed = next((step for step in job.steps if step.state is StepState.FAILED), None)
    if failed:
        what = f"{what} failed at step {failed.name}"
        if failed.detail and failed.detail not in job.outcome:
            reasons.insert(0, failed.detail)
    else:
        what = f"{what} failed"
    # A daemon that does not say with which status a failed job ends leaves it at done.
    status = job.exit_status or ExitStatus.FAILED
    return CommandError(f"{what}{_because('; '.join(reasons))}", job.hint or _look(job), status, "job_failed")


def outcome_of(job: JobView) -> str:
    return job.outcome or f"{job.kind} of {job.model} is {job.state}"


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _look(job: JobView) -> str:
    return f"`llmgw ctl jobs show {job.id}` has all its steps"
