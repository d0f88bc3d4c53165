"""Waiting until a canary ended, for a script that goes on by how it ended."""

from llmgw_ctl.client import Connection
from llmgw_ctl.drawing import drawing
from llmgw_ctl.failures import CommandError, DaemonGoneError, InterruptedByUserError
from llmgw_ctl.output import document, result
from llmgw_ctl.verbs import Manner, begin, conclude, follow, tell_done
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.messages import Done, StartCanary
from llmgwd.protocol.states import CanaryPhase, JobState
from llmgwd.protocol.views import CanaryView, JobView

# Any other end is a failure.
STATUS_OF_END = {
    CanaryPhase.PROMOTED: ExitStatus.DONE,
    CanaryPhase.ROLLED_BACK: ExitStatus.ROLLED_BACK,
    CanaryPhase.ABORTED: ExitStatus.REFUSED,
}


def carry_out_until_verdict(connection: Connection, request: StartCanary, manner: Manner) -> None:
    """Starts a canary and stays until it ended. Raises CommandError unless it was promoted or nothing was newer."""
    reply = begin(connection, request)
    if isinstance(reply, Done):
        tell_done(reply, manner)
        return
    job = follow(connection, reply.job, manner)
    if job.state is JobState.FAILED:
        conclude(job, manner)
    try:
        # A canary bears the id of the job that makes it.
        canary = wait_for_end(connection, job.id, request.name, manner)
    except CommandError as error:
        if error.status is not ExitStatus.UNKNOWN:
            raise
        conclude_without_canary(job, manner)
    else:
        conclude_canary(canary, manner)


def conclude_without_canary(job: JobView, manner: Manner) -> None:
    """Tells of a job that ended before it made its canary: nothing was newer, or a person took it back."""
    try:
        conclude(job, manner)
    except CommandError as error:
        error.status = ExitStatus.REFUSED
        raise


def wait_for_end(connection: Connection, canary_id: str, model: str, manner: Manner) -> CanaryView:
    try:
        with drawing(manner.silent) as live:
            for canary in connection.watch_canary(canary_id):
                live.show_canary(canary)
            return canary
    except KeyboardInterrupt as interrupt:
        raise InterruptedByUserError(
            f"the canary {canary_id} of {model} goes on without this terminal",
            f"look again with `llmgw ctl model canaries {model}`, or take it out with `llmgw ctl model abort {model}`",
        ) from interrupt
    except DaemonGoneError as error:
        raise DaemonGoneError(
            f"llmgwd went away while the canary {canary_id} of {model} waited for its verdict",
            f"start it again, then look with `llmgw ctl model canaries {model}`",
        ) from error


def conclude_canary(canary: CanaryView, manner: Manner) -> None:
    """Tells how a canary ended. Raises CommandError with the end's status unless it was promoted."""
    if manner.json:
        document(canary)
    phase = canary.phase.replace("_", " ")
    because = canary.reason or canary.verdict.sentence
    words = f"{canary.name} was {phase}" if canary.phase is not CanaryPhase.FAILED else f"{canary.name} failed"
    if because:
        words += f": {because}"
    status = STATUS_OF_END.get(canary.phase, ExitStatus.FAILED)
    if status is not ExitStatus.DONE:
        figures = f"its figures: `llmgw ctl model canaries {canary.model} --ended`"
        error = CommandError(words, figures, status, code=f"canary_{canary.phase}")
        error.documented = manner.json
        raise error
    if not manner.silent:
        result(words)
