"""Jobs as a listing and as a page of steps."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llmgw_ctl.follow import took_s
from llmgw_ctl.render.screen import Listing, state, text
from llmgw_ctl.render.words import counted, duration, moment, size
from llmgwd.protocol.states import StepState
from llmgwd.protocol.views import JobView, ProgressView, StepView

MARKS = {
    StepState.PENDING: ("·", "dim"),
    StepState.RUNNING: ("▸", "cyan"),
    StepState.DONE: ("✔", "green"),
    StepState.FAILED: ("✘", "red"),
    StepState.SKIPPED: ("-", "dim"),
}


def job_list(jobs: Sequence[JobView]) -> RenderableType:
    if not jobs:
        return text("no jobs yet")
    now = datetime.now(UTC)
    rows = []
    for job in jobs:
        took = took_s(job.started, job.ended, now)
        row = [
            text(job.id, "bold"),
            text(job.model),
            state(job.state),
            text(moment(job.created, now)),
            text("" if took is None else duration(took)),
            text(job.outcome, "dim"),
        ]
        rows.append(row)
    return Listing(["ID", "MODEL", "STATE", "CREATED", "TOOK", "OUTCOME"], rows)


def job_page(job: JobView) -> RenderableType:
    now = datetime.now(UTC)
    took = took_s(job.started, job.ended, now)
    title = Text.assemble(
        text(f"{job.kind} of {job.model}", "bold"), "  ", state(job.state), text(f"  {job.id}", "dim")
    )
    who = f"  by {job.by}, {moment(job.created, now)}" + ("" if took is None else f", {duration(took)}")
    parts: list[RenderableType] = [title, text(who, "dim"), steps(job.steps, now)]
    if job.outcome:
        parts.append(text(f"  {job.outcome}"))
    if job.hint:
        parts.append(text(f"  hint: {job.hint}", "dim"))
    return Group(*parts)


def steps(all_steps: Sequence[StepView], now: datetime) -> RenderableType:
    grid = steps_grid()
    for step in all_steps:
        mark, style = MARKS[step.state]
        took = took_s(step.started, step.ended, now)
        detail = step.detail or (progress_words(step.progress) if step.progress else "")
        grid.add_row(
            text(f"  {mark}", style),
            text(step.name, "dim" if step.state is StepState.PENDING else ""),
            text(detail),
            text("" if took is None else duration(took), "dim"),
        )
    return grid


def steps_grid() -> Table:
    """Mark, name, detail, time: the shape of steps at rest and live."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_column(no_wrap=True, justify="right")
    return grid


def progress_words(progress: ProgressView) -> str:
    """`58.4 MiB of 93.8 MiB`, or a count of what is counted."""
    if progress.unit == "bytes":
        done = size(progress.done)
        return done if progress.total is None else f"{done} of {size(progress.total)}"
    if progress.total is None:
        return counted(progress.done, progress.unit)
    return f"{progress.done} of {counted(progress.total, progress.unit)}"
