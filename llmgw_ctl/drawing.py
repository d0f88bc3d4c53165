"""How progress is told on stderr: live on a terminal, a line a change elsewhere, or not at all."""

import sys
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol, Self

from llmgw_ctl.follow import changed_steps, step_line
from llmgw_ctl.output import is_lively, note
from llmgw_ctl.render.words import percent
from llmgwd.protocol.views import CanaryView, JobView


class Drawing(AbstractContextManager["Drawing"], Protocol):
    """Shows what is followed while it is entered."""

    def show_job(self, job: JobView) -> None: ...

    def show_canary(self, canary: CanaryView) -> None: ...


class Silence:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def show_job(self, job: JobView) -> None:
        pass

    def show_canary(self, canary: CanaryView) -> None:
        pass


class Lines(Silence):
    """One plain line for each change of a step or a canary."""

    def __init__(self) -> None:
        self._job: JobView | None = None
        self._canary: tuple[str, float, str] | None = None

    def show_job(self, job: JobView) -> None:
        if self._job is None:
            note(f"{job.kind} of {job.model}: {job.id}")
        for step in changed_steps(self._job, job):
            note(step_line(step, datetime.now(UTC)))
        self._job = job

    def show_canary(self, canary: CanaryView) -> None:
        # Not for each look's figures: a night's wait in a log is a few lines, not a thousand.
        state = (canary.phase, canary.share, canary.verdict.state)
        if state != self._canary:
            phase, verdict = canary.phase.replace("_", " "), canary.verdict
            said = verdict.sentence.removeprefix(f"{verdict.state} ")
            note(f"{canary.name}: {phase} at {percent(canary.share)}, {verdict.state}: {said}")
        self._canary = state


def drawing(silent: bool) -> Drawing:
    if silent:
        return Silence()
    if is_lively(sys.stderr):
        # Rich is imported to draw and only then.
        from llmgw_ctl.render.live import Live

        return Live()
    return Lines()
