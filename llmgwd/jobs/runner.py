"""The runner: takes jobs from the table and brings each to its end, one task a job."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import anyio
import anyio.abc
import msgspec

from llmgwd.domain.errors import LlmgwError, refused
from llmgwd.domain.jobs import STEPS, Job, job_id, planned
from llmgwd.jobs.run import Cancellation, NothingToDo, Run, Skipped, Step
from llmgwd.jobs.services import Services
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.states import EventKind, JobKind, JobState, StepState
from llmgwd.weights.progress import Cancelled

log = logging.getLogger(__name__)


class Recipe(NamedTuple):
    """How a kind of job is done: a function for each step, what it says when done, and how a failure is undone.

    `undo` gets why; it must be safe at every step.
    """

    steps: tuple[Step, ...]
    outcome: Callable[[Run], str]
    undo: Callable[[Run, str], Awaitable[None]]


class Runner:
    """Runs each job in a task of its own. A model has at most one unfinished job, which the store holds it to."""

    def __init__(self, services: Services, recipes: Mapping[JobKind, Recipe], tasks: anyio.abc.TaskGroup) -> None:
        self._services = services
        self._recipes = recipes
        self._tasks = tasks
        self._runs: dict[str, Run] = {}
        self._is_stopping = False
        self._is_leaving = False

    def submit(self, kind: JobKind, model: str, by: str, args: msgspec.Struct) -> Job:
        """Writes a job and starts it. Raises LlmgwError when the model has one already.

        To be called outside a transaction: once it returns, the job is on disk.
        """
        if self._is_stopping:
            raise refused("stopping", "the daemon is stopping", hint="ask again once it has been started again")
        store = self._services.store
        with store.transaction():
            if other := store.jobs.of(model):
                raise busy(other)
            seq = store.jobs.next_seq()
            now = self._services.now()
            job = Job(job_id(kind, now, seq), kind, model, by, now, msgspec.msgpack.encode(args), steps=planned(kind))
            store.jobs.insert(seq, job)
        run = self._runs[job.id] = Run(job, self._services)
        self._tasks.start_soon(self._run, run)
        return job

    def view_job(self, job: str) -> Job:
        """A job as it is now, live progress included. Raises LlmgwError when there is none."""
        run = self._runs.get(job)
        return run.view_job if run else self._services.store.jobs.get(job)

    async def cancel(self, job: str, cancellation: Cancellation) -> Job:
        """Stops a job and waits until what it did is undone. Raises LlmgwError when it is past stopping."""
        run = self._runs.get(job)
        if run is None:
            ended = self._services.store.jobs.get(job)
            raise refused("job_ended", f"{job} has already ended: {ended.state}")
        if run.committed:
            raise refused(
                "job_committed",
                f"{job} cannot be stopped any more: {run.job.model} has already moved",
                hint=f"let it end, then go back with `llmgw ctl model rollback {run.job.model}`",
            )
        await self._cancel(run, cancellation)
        return run.job

    async def _cancel(self, run: Run, cancellation: Cancellation) -> None:
        """Stops it unless it is past stopping, and waits for its end."""
        if not run.committed:
            run.cancellation = run.cancellation or cancellation
            run.cancel_flag.set()
            run.scope.cancel()
        await run.ended.wait()

    async def stop_all(self, cancellation: Cancellation) -> None:
        """Cancels what can be cancelled and waits for the rest; takes no more."""
        self._is_stopping = True
        async with anyio.create_task_group() as tasks:
            for run in list(self._runs.values()):
                tasks.start_soon(self._cancel, run, cancellation)

    async def leave_all(self) -> None:
        """Stops all where they are; on disk they stay unfinished, for the next life of the daemon."""
        self._is_stopping = self._is_leaving = True
        runs = list(self._runs.values())
        for run in runs:
            run.cancel_flag.set()
            run.scope.cancel()
        for run in runs:
            await run.ended.wait()

    async def _run(self, run: Run) -> None:
        try:
            await self._carry_out(run)
        except Exception:
            # The store itself failed: the job stays unfinished on disk, and the next start ends it.
            log.exception("job could not be brought to an end id=%s", run.job.id)
        finally:
            del self._runs[run.job.id]
            run.ended.set()
            self._services.feed.publish(run.job.id)
        self._services.wish_clean_up()

    async def _carry_out(self, run: Run) -> None:
        services, recipe = self._services, self._recipes[run.job.kind]
        run.save(msgspec.structs.replace(run.job, state=JobState.RUNNING, started=services.now()))
        error: LlmgwError | None = None
        outcome = ""
        with run.scope:
            try:
                outcome = await self._steps(run, recipe)
            except Cancelled:
                pass
            except LlmgwError as raised:
                error = raised
            except Exception as raised:
                log.exception("job failed unexpectedly id=%s", run.job.id)
                error = LlmgwError("unexpected", f"{type(raised).__name__}: {raised}", hint="see the daemon's log")
        if self._is_leaving:
            return
        with anyio.CancelScope(shield=True):
            if outcome:
                self._end(run, JobState.DONE, outcome)
            else:
                await self._undo(run, recipe, error)

    async def _steps(self, run: Run, recipe: Recipe) -> str:
        for index, (name, act) in enumerate(zip(STEPS[run.job.kind], recipe.steps, strict=True)):
            step = msgspec.structs.replace(run.job.steps[index], state=StepState.RUNNING, started=self._services.now())
            run.check()
            run.save_step(index, step)
            try:
                detail = await act(run)
            except NothingToDo as nothing:
                self._end_step(run, index, StepState.DONE, str(nothing))
                self._skip_rest(run)
                return str(nothing)
            except LlmgwError as error:
                self._end_step(run, index, StepState.FAILED, error.message)
                log.warning("job step failed id=%s step=%s why=%s", run.job.id, name, error.message)
                raise
            self._end_step(run, index, StepState.SKIPPED if isinstance(detail, Skipped) else StepState.DONE, detail)
        return recipe.outcome(run)

    def _end_step(self, run: Run, index: int, state: StepState, detail: str) -> None:
        step = run.job.steps[index]
        run.save_step(index, msgspec.structs.replace(step, state=state, detail=str(detail), ended=self._services.now()))

    def _skip_rest(self, run: Run) -> None:
        for index, step in enumerate(run.job.steps):
            if step.state is StepState.PENDING:
                run.save_step(index, msgspec.structs.replace(step, state=StepState.SKIPPED))

    async def _undo(self, run: Run, recipe: Recipe, error: LlmgwError | None) -> None:
        cancellation = run.cancellation or Cancellation("llmgw", "the daemon was stopped")
        why = error.message if error else cancellation.reason
        for index, step in enumerate(run.job.steps):
            if step.state is StepState.RUNNING:
                self._end_step(run, index, StepState.FAILED, why)
        self._skip_rest(run)
        try:
            await recipe.undo(run, why)
        except LlmgwError as left:
            why += f"; and then: {left.message}"
        except Exception:
            log.exception("job could not be undone id=%s", run.job.id)
            why += "; undoing it failed too, see the daemon's log"
        if error is None:
            self._end(run, JobState.CANCELLED, why, status=ExitStatus.FAILED)
        else:
            self._end(run, JobState.FAILED, why, hint=error.hint, status=error.status)

    def _end(
        self, run: Run, state: JobState, outcome: str, *, hint: str = "", status: ExitStatus = ExitStatus.DONE
    ) -> None:
        job = msgspec.structs.replace(
            run.job, state=state, outcome=outcome, hint=hint, exit_status=status, ended=self._services.now()
        )
        with self._services.store.transaction():
            self._services.store.jobs.save(job)
            event = self._services.log_event(job.by, EventKind(f"job_{state}"), job.model, after=job.id, why=outcome)
        run.save(job)
        self._services.announce(event)


def busy(job: Job) -> LlmgwError:
    """The refusal of a verb on a model whose job is not over."""
    return refused(
        "job_running",
        f"{job.model} has a running job: {job.id}",
        hint=f"follow it with `llmgw ctl jobs watch {job.id}`, or stop it with `llmgw ctl jobs cancel {job.id}`",
    )
