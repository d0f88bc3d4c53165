"""Giving a canary another share, by a person or by its plan."""

import msgspec

from llmgwd.domain.canary import Canary, CanaryEvent, after, no_canary
from llmgwd.domain.plan import Progress
from llmgwd.jobs.services import Services
from llmgwd.protocol.states import CanaryPhase, EventKind


async def give_share(
    services: Services,
    model: str,
    percent: float,
    *,
    by: str,
    why: str = "",
    progress: Progress | None = None,
    is_plans: bool = False,
) -> Canary:
    """Returns the canary once every gateway worker follows; `progress` is the plan's, when that changes with it.

    is_plans: the plan gives it. What was withheld from the canary, as it could not be taken out, stays so then.
    Where nothing differs nothing is written (K12). Raises LlmgwError when the model has no canary that a share can be
    given to.
    """
    event = None
    with services.store.transaction():
        canary = services.store.canaries.of(model)
        if canary is None:
            raise no_canary(services.store.models.get(model), "give a share to")
        if canary.phase not in (CanaryPhase.PREPARING, CanaryPhase.SERVING):
            after(canary, CanaryEvent.PROMOTE)  # Raises with the reason of this phase.
        changed = msgspec.structs.replace(canary, share=percent, progress=progress or canary.progress)
        if changed != canary:
            services.store.canaries.put(changed)
            event = services.log_event(
                by, EventKind.CANARY_SHARE, model, before=f"{canary.share:g} %", after=f"{changed.share:g} %", why=why
            )
    if not is_plans:
        services.dataplane.withhold(changed.id, withheld=False)
    await services.dataplane.publish()
    services.feed.publish(changed.id)
    if event is not None:
        services.announce(event)
    return changed
