"""A verb from its request to its exit: started, followed or left alone, and what its end means for the caller."""

from typing import NamedTuple

from llmgw_ctl.client import VERB_S, Connection
from llmgw_ctl.drawing import Drawing, drawing
from llmgw_ctl.failures import DaemonGoneError, InterruptedByUserError
from llmgw_ctl.follow import failure_of, outcome_of
from llmgw_ctl.output import document, note, result
from llmgwd.protocol.messages import AddModel, Done, Preview, Previewed, Request, StartCanary, Started
from llmgwd.protocol.states import JobState
from llmgwd.protocol.views import JobView


class Manner(NamedTuple):
    """How the caller wants to be answered."""

    json: bool
    quiet: bool = False
    detach: bool = False

    @property
    def silent(self) -> bool:
        """Whether progress is not told: a program reads the result, or nobody asked."""
        return self.json or self.quiet


def begin(connection: Connection, request: Request) -> Started | Done:
    """Asks for a verb. Raises InterruptedByUserError on Ctrl-C, when only the daemon can say what became of it."""
    try:
        return connection.act(request)
    except KeyboardInterrupt as interrupt:
        raise InterruptedByUserError(
            "llmgwd had not answered yet, what was asked for may still take effect",
            "see `llmgw ctl jobs list` and `llmgw ctl events`",
        ) from interrupt


def carry_out(connection: Connection, request: Request, manner: Manner) -> None:
    """Asks for a verb and stays with its job until it ends, unless the caller detaches."""
    reply = begin(connection, request)
    if isinstance(reply, Done):
        tell_done(reply, manner)
    elif manner.detach:
        tell_started(reply, manner)
    else:
        conclude(follow(connection, reply.job, manner), manner)


def tell_preview(connection: Connection, request: AddModel | StartCanary, manner: Manner) -> None:
    """What the verb would do. Raises CommandError for what it would be refused."""
    preview = connection.ask(Preview(request), Previewed, VERB_S).preview
    if manner.json:
        document(preview)
        return
    from llmgw_ctl.render.engines import preview_page
    from llmgw_ctl.render.screen import draw

    draw(preview_page(preview))


def tell_done(done: Done, manner: Manner) -> None:
    if manner.json:
        document({"message": done.message})
    elif not manner.quiet:
        result(done.message)


def tell_started(started: Started, manner: Manner) -> None:
    if manner.json:
        document(started.job)
    else:
        result(started.job.id)


def follow(connection: Connection, job: JobView, manner: Manner) -> JobView:
    """The job as it ended, its steps drawn meanwhile."""
    try:
        with drawing(manner.silent) as live:
            return _last(connection, job, live)
    except KeyboardInterrupt as interrupt:
        raise InterruptedByUserError(
            f"{job.id} goes on without this terminal",
            f"look again with `llmgw ctl jobs watch {job.id}`, or stop it with `llmgw ctl jobs cancel {job.id}`",
        ) from interrupt
    except DaemonGoneError as error:
        raise DaemonGoneError(
            f"llmgwd went away while {job.id} ran",
            f"start it again: it undoes what the job had not finished, and `llmgw ctl jobs show {job.id}` says which",
        ) from error


def _last(connection: Connection, job: JobView, live: Drawing) -> JobView:
    live.show_job(job)
    for job in connection.watch_job(job.id):  # noqa: B020
        live.show_job(job)
    return job


def conclude(job: JobView, manner: Manner) -> None:
    """Tells what came of an ended job. Raises CommandError unless it is done."""
    if manner.json:
        document(job)
    failure = failure_of(job)
    if failure:
        failure.documented = manner.json
        raise failure
    if not manner.silent:
        result(outcome_of(job))
        if job.hint and job.state is JobState.DONE:
            note(f"hint: {job.hint}")
