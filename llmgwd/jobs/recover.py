"""What a start makes of the jobs and canaries that the last life of the daemon left unfinished.

Every process of that life has been ended before: what serves is started anew from the catalog. A job does not go on;
the model keeps the weights that its row names, so a move that had committed holds, and one that had not never happened.
"""

import msgspec

from llmgwd.domain.canary import Canary
from llmgwd.jobs.services import Services
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.states import CanaryPhase, JobState, StepState

WHY = "the daemon ended while it ran"

_ENDING = {
    CanaryPhase.PREPARING: CanaryPhase.FAILED,
    CanaryPhase.PROMOTING: CanaryPhase.PROMOTED,
    CanaryPhase.REMOVING: CanaryPhase.ABORTED,
}


def recover(services: Services) -> None:
    """Ends unfinished jobs, and the canaries that were on their way in, out or up."""
    store = services.store
    with store.transaction():
        for job in store.jobs.unfinished():
            steps = tuple(
                msgspec.structs.replace(step, state=StepState.FAILED, detail=WHY, ended=services.now())
                if step.state is StepState.RUNNING
                else step
                for step in job.steps
            )
            store.jobs.save(
                msgspec.structs.replace(
                    job,
                    state=JobState.FAILED,
                    outcome=WHY,
                    exit_status=ExitStatus.FAILED,
                    ended=services.now(),
                    steps=steps,
                )
            )
            services.log_event("llmgw", "job_failed", job.model, after=job.id, why=WHY)
        for canary in store.canaries.running():
            if canary.phase in _ENDING:
                _end(services, canary)


def _end(services: Services, canary: Canary) -> None:
    ending = canary.ending or _ENDING[canary.phase]
    services.store.canaries.put(
        msgspec.structs.replace(canary, phase=ending, ended=services.now(), reason=canary.reason or WHY)
    )
    services.store.models.delete(canary.name)
    services.log_event("llmgw", f"canary_{ending}", canary.model, before=canary.origin.short, why=canary.reason or WHY)
