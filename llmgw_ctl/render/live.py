"""A job or a canary on a terminal, redrawn in place while it goes on."""

import sys
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live as LiveDisplay
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.text import Text

from llmgw_ctl.follow import Pace, seconds_left, took_s
from llmgw_ctl.render.canaries import canary_block
from llmgw_ctl.render.jobs import MARKS, progress_words, steps_grid
from llmgw_ctl.render.screen import screen, text
from llmgw_ctl.render.words import duration, size
from llmgwd.protocol.states import StepState
from llmgwd.protocol.views import CanaryView, JobView, ProgressView, StepView

REDRAWS_PER_S = 10
BAR_WIDTH = 32


class Live:
    """Draws from a thread of its own; what it is shown replaces what it drew, as one assignment."""

    def __init__(self) -> None:
        self._console = screen(sys.stderr)
        self._job: JobView | None = None
        self._canary: CanaryView | None = None
        self._spinner = Spinner("dots", style="cyan")
        self._pace = Pace()
        self._per_second: float | None = None
        self._display = LiveDisplay(
            get_renderable=self._picture, console=self._console, refresh_per_second=REDRAWS_PER_S
        )

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._display.stop()

    def show_job(self, job: JobView) -> None:
        running = next((step for step in job.steps if step.state is StepState.RUNNING), None)
        if running and running.progress:
            self._pace.saw(time.monotonic(), running.progress.done)
            self._per_second = self._pace.per_second()
        else:
            self._pace, self._per_second = Pace(), None
        self._job = job

    def show_canary(self, canary: CanaryView) -> None:
        self._job, self._canary = None, canary

    def _picture(self) -> RenderableType:
        # The terminal echoes ^C behind the last line; were that line full, the echo would start a new one.
        return Constrain(self._followed(), self._console.width - len("^C "))

    def _followed(self) -> RenderableType:
        job, canary = self._job, self._canary
        if canary:
            block = self._fitting(canary)
            return block if canary.ended else Group(block, self._waiting())
        return self._steps(job) if job else ""

    def _fitting(self, canary: CanaryView) -> RenderableType:
        """The block, without its figures where it would not fit: what is cut off is the end, with the verdict."""
        block = canary_block(canary)
        lines = len(self._console.render_lines(block)) + 1
        return block if lines < self._console.height else canary_block(canary, figures=False)

    def _waiting(self) -> RenderableType:
        self._spinner.update(text=text("waiting for the verdict; Ctrl-C leaves the canary as it is", "dim"))
        return self._spinner

    def _steps(self, job: JobView) -> RenderableType:
        now = datetime.now(UTC)
        grid = steps_grid()
        for step in job.steps:
            mark, style = MARKS[step.state]
            running = step.state is StepState.RUNNING
            took = took_s(step.started, step.ended, now)
            grid.add_row(
                self._spinner if running else text(mark, style),
                text(step.name, "dim" if step.state is StepState.PENDING else "bold" if running else ""),
                self._detail(step),
                text("" if took is None else duration(took), "dim"),
            )
        return Group(Text.assemble(text(f"{job.kind} of {job.model}", "bold"), text(f"  {job.id}", "dim")), grid)

    def _detail(self, step: StepView) -> RenderableType:
        style = "red" if step.state is StepState.FAILED else ""
        if step.state is not StepState.RUNNING or step.progress is None:
            return text(step.detail, style)
        parts: list[RenderableType] = [text(step.detail)] if step.detail else []
        parts.append(text(self._progress(step.progress), "cyan"))
        if step.progress.total:
            # Last, because a bar does not end its line.
            parts.append(ProgressBar(total=step.progress.total, completed=step.progress.done, width=BAR_WIDTH))
        return Group(*parts)

    def _progress(self, progress: ProgressView) -> str:
        words = [progress_words(progress)]
        if self._per_second:
            is_bytes = progress.unit == "bytes"
            words.append(f"{size(self._per_second)}/s" if is_bytes else f"{self._per_second:.1f} {progress.unit}/s")
        if left := seconds_left(progress.done, progress.total, self._per_second):
            words.append(f"{duration(max(1, round(left)))} left")
        return "  ".join(words)
