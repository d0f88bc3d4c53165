"""The runner: takes jobs from the table and brings each to its end, one task a job."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import anyio
import anyio.abc
import msgspec

from llmgwd.domain.errors import LlmgwError, refused
from llmgwd.domain.jobs import Ending, Job, first_unfinished, job_id, planned
from llmgwd.domain.recovery import MOST_ENDS, Course, can_be_undone, course
from llmgwd.jobs.run import Cancellation, NothingToDo, Run, Skipped, Step
from llmgwd.jobs.services import Services
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.states import EventKind, JobKind, JobState, StepState
from llmgwd.store.database import StoreError
from llmgwd.weights.progress import Cancelled

log = logging.getLogger(__name__)

WRITE_AGAIN_S = 5.0
GIVEN_UP = f"the daemon ended {MOST_ENDS} times at this step"


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
        self._start(job)
        return job

    def resume(self) -> None:
        """Takes up every job that the last life of the daemon left unfinished."""
        store = self._services.store
        for job in store.jobs.unfinished():
            taken_up = msgspec.structs.replace(job, resumed=job.resumed + 1)
            at = job.steps[first_unfinished(job)].name if first_unfinished(job) < len(job.steps) else "its end"
            try:
                with store.transaction():
                    store.jobs.save(taken_up)
                    event = self._services.log_event(
                        "llmgw", EventKind.JOB_RESUMED, job.model, after=job.id, why=f"the daemon ended at {at}"
                    )
                self._services.announce(event)
            except StoreError as error:
                log.error("job taken up, which is not noted id=%s why=%s", job.id, error.message)
            self._start(taken_up)

    def _start(self, job: Job) -> None:
        run = self._runs[job.id] = Run(job, self._services)
        self._tasks.start_soon(self._run, run)

    def view_job(self, job: str) -> Job:
        """A job as it is now, live progress included. Raises LlmgwError when there is none."""
        run = self._runs.get(job)
        return run.view_job if run else self._services.store.jobs.get(job)

    async def cancel(self, job: str, cancellation: Cancellation) -> Job:
        """Stops a job and waits until what it did is undone. Raises LlmgwError when it is past stopping."""
        run = self._runs.get(job)
        if run is None or run.job.over:
            raise refused("job_ended", f"{job} has already ended: {self.view_job(job).state}")
        if not can_be_undone(run.job):
            raise refused(
                "job_committed",
                f"{job} cannot be stopped any more: {_beyond(run.job)}",
                hint=_after_commit(run.job),
            )
        run.cancel(cancellation)
        await run.ended.wait()
        return run.job

    async def stop(self) -> None:
        """Leaves every job as far as it is, for the next start to take up; takes no more."""
        self._is_stopping = True
        for run in list(self._runs.values()):
            run.interrupt()
        for run in list(self._runs.values()):
            await run.ended.wait()

    async def _run(self, run: Run) -> None:
        try:
            await self._carry_out(run)
        except Exception:
            log.exception("job could not be brought to an end id=%s", run.job.id)
        finally:
            del self._runs[run.job.id]
            run.ended.set()
            self._services.feed.publish(run.job.id)
        self._services.wish_clean_up()

    async def _carry_out(self, run: Run) -> None:
        ending = run.job.ending
        if ending is None and course(run.job) is Course.UNDO:
            ending = Ending(JobState.FAILED, "llmgw", GIVEN_UP, "see the daemon's log", ExitStatus.FAILED)
        if ending is None:
            with run.scope:
                ending = await self._try(run)
            if ending is None and run.cancellation is None:
                log.info("job left for the next start id=%s", run.job.id)
                # A stop that was asked for says nothing against the step.
                with suppress(StoreError):
                    run.save(msgspec.structs.replace(run.job, resumed=0))
                return
        if ending is None:
            assert run.cancellation is not None
            ending = Ending(JobState.CANCELLED, run.cancellation.by, run.cancellation.reason, status=ExitStatus.FAILED)
        await self._bring_to_its_end(run, ending)

    async def _try(self, run: Run) -> Ending | None:
        """How the job ends; None when it was stopped on its way."""
        try:
            services, job = self._services, run.job
            async with services.cleaning:
                run.save(msgspec.structs.replace(job, state=JobState.RUNNING, started=job.started or services.now()))
            return Ending(JobState.DONE, job.by, await self._steps(run))
        except Cancelled:
            return None
        except LlmgwError as error:
            return Ending(JobState.FAILED, run.job.by, error.message, error.hint, error.status)
        except Exception as error:
            log.exception("job failed unexpectedly id=%s", run.job.id)
            why = f"{type(error).__name__}: {error}"
            return Ending(JobState.FAILED, run.job.by, why, "see the daemon's log", ExitStatus.FAILED)

    async def _steps(self, run: Run) -> str:
        recipe = self._recipes[run.job.kind]
        for index in range(first_unfinished(run.job), len(recipe.steps)):
            run.check()
            self._begin_step(run, index)
            try:
                detail = await recipe.steps[index](run)
            except NothingToDo as nothing:
                self._end_step(run, index, StepState.DONE, str(nothing))
                self._skip_rest(run)
                return str(nothing)
            except LlmgwError as error:
                log.warning(
                    "job step failed id=%s step=%s why=%s", run.job.id, run.job.steps[index].name, error.message
                )
                raise
            self._end_step(run, index, StepState.SKIPPED if isinstance(detail, Skipped) else StepState.DONE, detail)
        return recipe.outcome(run)

    def _begin_step(self, run: Run, index: int) -> None:
        step = run.job.steps[index]
        run.save_step(
            index,
            msgspec.structs.replace(step, state=StepState.RUNNING, started=step.started or self._services.now()),
        )

    def _end_step(self, run: Run, index: int, state: StepState, detail: str) -> None:
        step = run.job.steps[index]
        ended = msgspec.structs.replace(step, state=state, detail=str(detail), ended=self._services.now())
        run.save_step(index, ended, resumed=0)

    def _skip_rest(self, run: Run) -> None:
        for index, step in enumerate(run.job.steps):
            if step.state is StepState.PENDING:
                run.save_step(index, msgspec.structs.replace(step, state=StepState.SKIPPED))

    async def _bring_to_its_end(self, run: Run, ending: Ending) -> None:
        """Also when the store takes nothing for a while: followers are told at once, and it is tried until it does."""
        while True:
            try:
                with anyio.CancelScope(shield=True):
                    await self._end(run, ending)
                return
            except StoreError as error:
                log.error("end of a job not written yet id=%s why=%s", run.job.id, error.message)
                why = ending.why if error.message in ending.why else f"{ending.why}; {error.message}"
                run.job = msgspec.structs.replace(
                    run.job, state=ending.state, outcome=why, hint=ending.hint, exit_status=ending.status
                )
                self._services.feed.publish(run.job.id)
            with anyio.move_on_after(WRITE_AGAIN_S):
                await run.interrupted.wait()
            if run.interrupted.is_set():
                return

    async def _end(self, run: Run, ending: Ending) -> None:
        """Undoes a job that is not done, then writes how it ended. Raises StoreError, and is to be tried again then."""
        if ending.state is not JobState.DONE:
            ending = await self._undo(run, ending)
        job = msgspec.structs.replace(
            run.job,
            state=ending.state,
            outcome=ending.why,
            hint=ending.hint,
            exit_status=ending.status,
            ended=self._services.now(),
        )
        with self._services.store.transaction():
            self._services.store.jobs.save(job)
            event = self._services.log_event(
                job.by, EventKind(f"job_{ending.state}"), job.model, after=job.id, why=ending.why
            )
        run.job = job
        self._services.feed.publish(job.id)
        self._services.announce(event)

    async def _undo(self, run: Run, ending: Ending) -> Ending:
        """The ending, with what of it could not be undone."""
        run.save(msgspec.structs.replace(run.job, state=JobState.RUNNING, ending=ending))
        for index, step in enumerate(run.job.steps):
            if step.state is StepState.RUNNING:
                self._end_step(run, index, StepState.FAILED, ending.why)
        self._skip_rest(run)
        left = ""
        try:
            await self._recipes[run.job.kind].undo(run, ending.why)
        except StoreError:
            raise
        except LlmgwError as error:
            left = f"; and then: {error.message}"
        except Exception:
            log.exception("job could not be undone id=%s", run.job.id)
            left = "; undoing it failed too, see the daemon's log"
        return msgspec.structs.replace(ending, why=ending.why + left)


def busy(job: Job) -> LlmgwError:
    """The refusal of a verb on a model whose job is not over."""
    return refused(
        "job_running",
        f"{job.model} has a running job: {job.id}",
        hint=f"follow it with `llmgw ctl jobs watch {job.id}`, or stop it with `llmgw ctl jobs cancel {job.id}`",
    )


def _beyond(job: Job) -> str:
    return f"{job.model} is gone already" if job.kind is JobKind.REMOVE else f"{job.model} has already moved"


def _after_commit(job: Job) -> str:
    if job.kind is JobKind.REMOVE:
        return f"let it end, then `llmgw ctl model add {job.model} …` serves it again"
    return f"let it end, then go back with `llmgw ctl model rollback {job.model}`"
