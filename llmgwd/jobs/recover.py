"""What a start makes of the jobs and canaries that the last life of the daemon left unfinished.

Every process of that life has been ended before: what serves is started anew from the catalog. No job goes on. What had
passed its point of no return holds (a promotion, a removal); what had not is undone: an update or rollback goes back to
the row it replaced, an added model leaves again, a canary that did not serve yet is taken out.
"""

import msgspec

from llmgwd.domain.canary import Canary
from llmgwd.domain.jobs import Job
from llmgwd.jobs.move import put_back
from llmgwd.jobs.services import Services
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.states import CanaryPhase, EventKind, JobKind, JobState, StepState

WHY = "the daemon ended while it ran"

_ENDING = {
    CanaryPhase.PREPARING: CanaryPhase.FAILED,
    CanaryPhase.PROMOTING: CanaryPhase.PROMOTED,
    CanaryPhase.REMOVING: CanaryPhase.ABORTED,
}


def recover(services: Services) -> None:
    """Ends unfinished jobs, and the canaries that were on their way in, out or up."""
    with services.store.transaction():
        for job in services.store.jobs.unfinished():
            if _holds(services, job):
                _end_job(services, job, JobState.DONE, "done; the daemon ended before it could say so")
            else:
                _undo(services, job)
                _end_job(services, job, JobState.FAILED, WHY)
        for canary in services.store.canaries.running():
            if canary.phase in _ENDING:
                _end_canary(services, canary)


def _holds(services: Services, job: Job) -> bool:
    """Whether the job had passed its point of no return."""
    model = services.store.models.find(job.model)
    if job.kind is JobKind.PROMOTE:
        canary = services.store.canaries.of(job.model)
        return canary is None or canary.phase is CanaryPhase.PROMOTING
    return job.kind is JobKind.REMOVE and model is None


def _undo(services: Services, job: Job) -> None:
    if job.kind is JobKind.ADD and services.store.models.find(job.model) is not None:
        services.store.models.delete(job.model)
        services.log_event("llmgw", EventKind.MODEL_REMOVED, job.model, why=WHY)
    elif job.before is not None:
        put_back(services, job.before, WHY)


def _end_job(services: Services, job: Job, state: JobState, outcome: str) -> None:
    steps = tuple(
        msgspec.structs.replace(
            step,
            state=StepState.DONE if state is JobState.DONE else StepState.FAILED,
            detail=outcome,
            ended=services.now(),
        )
        if step.state is StepState.RUNNING
        else step
        for step in job.steps
    )
    status = ExitStatus.DONE if state is JobState.DONE else ExitStatus.FAILED
    services.store.jobs.save(
        msgspec.structs.replace(
            job, state=state, outcome=outcome, exit_status=status, ended=services.now(), steps=steps
        )
    )
    services.log_event("llmgw", EventKind(f"job_{state}"), job.model, after=job.id, why=outcome)


def _end_canary(services: Services, canary: Canary) -> None:
    ending = canary.ending or _ENDING[canary.phase]
    services.store.canaries.put(
        msgspec.structs.replace(canary, phase=ending, ended=services.now(), reason=canary.reason or WHY)
    )
    services.store.models.delete(canary.name)
    if ending is not CanaryPhase.PROMOTED:
        why = canary.reason or WHY
        services.log_event("llmgw", EventKind(f"canary_{ending}"), canary.model, before=canary.origin.short, why=why)
