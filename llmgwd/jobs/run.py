"""One job as it runs: its record on disk, its live progress, and how it is cancelled."""

import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import anyio
import msgspec

from llmgwd.domain.catalog import Model, Origin
from llmgwd.domain.jobs import Job
from llmgwd.engines.replica import Replica
from llmgwd.jobs.services import Services
from llmgwd.protocol.states import StepState
from llmgwd.protocol.views import ProgressView, StepView
from llmgwd.weights.progress import Cancelled

Result = TypeVar("Result")

PROGRESS_EVERY_S = 0.2


class NothingToDo(Exception):  # noqa: N818 - it is no error
    """A step found that the job's aim already holds; the rest is skipped and the job is done."""


class Skipped(str):
    """A step's detail that says why it had nothing to do."""

    __slots__ = ()


class Cancellation(msgspec.Struct, frozen=True):
    """Who cancels a job, and why."""

    by: str
    reason: str


class Run:
    """Handed from step to step. All that one step finds out for a later one stands in `job`, which is on disk."""

    def __init__(self, job: Job, services: Services) -> None:
        self.job = job
        self.services = services
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.cancel_flag = threading.Event()
        self.cancellation: Cancellation | None = None
        self.interrupted = anyio.Event()
        """Set when the daemon stops: the job stays as far as it is, for the next start."""
        self._progress: ProgressView | None = None
        self._progress_at = 0.0

    @property
    def view_job(self) -> Job:
        """The job with the progress of its running step."""
        if self._progress is None:
            return self.job
        steps = tuple(
            msgspec.structs.replace(step, progress=self._progress) if step.state is StepState.RUNNING else step
            for step in self.job.steps
        )
        return msgspec.structs.replace(self.job, steps=steps)

    @property
    def model(self) -> Model:
        """The model's row as it is now. Raises LlmgwError when there is none."""
        return self.services.store.models.get(self.job.model)

    @property
    def origin(self) -> Origin:
        """Of the new weights, which an earlier step found."""
        assert self.job.origin is not None
        return self.job.origin

    @property
    def new(self) -> list[Replica]:
        """The replicas that the model is to have once the job is done, in the order they were started."""
        mine = self.services.fleet.of(self.job.model)
        return [replica for replica in mine if replica.id not in self.job.replaced and not replica.is_leaving]

    @property
    def old(self) -> list[Replica]:
        """The model's other replicas."""
        new = {replica.id for replica in self.new}
        return [replica for replica in self.services.fleet.of(self.job.model) if replica.id not in new]

    def cancel(self, cancellation: Cancellation) -> None:
        """The step that runs is stopped at its next pause."""
        self.cancellation = self.cancellation or cancellation
        self.cancel_flag.set()
        self.scope.cancel()

    def interrupt(self) -> None:
        self.interrupted.set()
        self.cancel_flag.set()
        self.scope.cancel()

    def check(self) -> None:
        """Raises Cancelled when somebody wants the job to stop."""
        if self.cancel_flag.is_set():
            raise Cancelled

    def note(self, **found: Any) -> None:
        """Puts what a step found out into the job, which is written when the step has ended."""
        self.job = msgspec.structs.replace(self.job, **found)

    @contextmanager
    def writing(self, **changes: Any) -> Iterator[None]:
        """One transaction for what is written inside and these changes of the job: all on disk, or nothing.

        Raises Cancelled before it when the job is to stop; after it the job may be past stopping.
        """
        self.check()
        job = msgspec.structs.replace(self.job, **changes)
        with self.services.store.transaction():
            yield
            self.services.store.jobs.save(job)
        self.job = job

    def save(self, job: Job) -> None:
        """Writes the job, then tells its followers."""
        self.services.store.jobs.save(job)
        self.job = job
        self.services.feed.publish(job.id)

    def save_step(self, index: int, step: StepView, **changes: Any) -> None:
        if step.state is not StepState.RUNNING:
            if self._progress is not None:
                step = msgspec.structs.replace(step, progress=self._progress)
            self._progress = None
        steps = (*self.job.steps[:index], step, *self.job.steps[index + 1 :])
        self.save(msgspec.structs.replace(self.job, steps=steps, **changes))

    def detail(self, text: str) -> None:
        """Shows what the running step is at."""
        steps = tuple(
            msgspec.structs.replace(step, detail=text) if step.state is StepState.RUNNING else step
            for step in self.job.steps
        )
        self.job = msgspec.structs.replace(self.job, steps=steps)
        self.services.feed.publish(self.job.id)

    async def in_thread(self, act: Callable[[], Result]) -> Result:
        """Runs what blocks in a thread; a cancelled job waits for it, and it looks at `cancel_flag` often."""
        return await anyio.to_thread.run_sync(act)

    def progress_from_thread(self, done_bytes: int, total_bytes: int) -> None:
        """Shows how far the step is; called in the thread of `in_thread`."""
        now = time.monotonic()
        if now - self._progress_at < PROGRESS_EVERY_S and done_bytes != total_bytes:
            return
        self._progress_at = now
        anyio.from_thread.run_sync(partial(self._show_progress, ProgressView(done_bytes, total_bytes, "bytes")))

    def notice_from_thread(self, line: str) -> None:
        """Shows what the step waits for; called in the thread of `in_thread`."""
        anyio.from_thread.run_sync(partial(self.detail, line))

    def _show_progress(self, progress: ProgressView) -> None:
        self._progress = progress
        self.services.feed.publish(self.job.id)


Step = Callable[[Run], Awaitable[str]]
"""Acts, unless its result holds already, and returns its detail. Raises LlmgwError, NothingToDo or Cancelled."""
