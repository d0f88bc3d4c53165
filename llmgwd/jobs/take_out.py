"""Taking a canary out: share first, then drain, then stop and remove (K6)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from llmgwd.domain.canary import Canary, CanaryEvent, after
from llmgwd.domain.differences import only_runs_otherwise
from llmgwd.domain.errors import LlmgwError
from llmgwd.engines.replica import Replica
from llmgwd.jobs.services import Services
from llmgwd.protocol.states import CanaryPhase, EventKind
from llmgwd.protocol.views import EventView
from llmgwd.store.database import StoreError


async def take_out(services: Services, canary_id: str, *, by: str, ending: CanaryPhase, reason: str) -> Canary:
    """Ends a canary as aborted, rolled back or failed; returns it ended.

    Once the share is gone from every gateway worker no request reaches it, whatever fails later. Asked for twice at
    once, the second waits for the first. Raises LlmgwError when the canary cannot be taken out in its phase, or that
    says what is left when its removal failed; StoreError when nothing can be written, and gives it nothing even so.
    """
    async with _alone(services, canary_id):
        canary = services.store.canaries.find(canary_id)
        assert canary is not None
        if not canary.runs and canary.phase is not CanaryPhase.PROMOTED:
            return canary
        try:
            going, told = _take_share(services, canary, by, ending, reason)
        except StoreError as error:
            raise await _withheld(services, canary, error) from error
        try:
            await services.dataplane.publish()
        finally:
            services.announce(told)
        try:
            await retire(services, services.fleet.of(canary.name))
            return _ended(services, going)
        except LlmgwError as error:
            left = ", ".join(replica.id for replica in services.fleet.of(canary.name)) or "its catalog row"
            raise LlmgwError(
                "canary_left",
                f"{canary.model} is safe, stable serves every request, but its canary could not be removed: {error}; "
                f"left: {left}",
                hint=f"ask again with `llmgw ctl model abort {canary.model}`",
            ) from error


@asynccontextmanager
async def _alone(services: Services, canary_id: str) -> AsyncIterator[None]:
    """While nobody else takes this canary out."""
    lock = services.taking_out[canary_id]
    try:
        async with lock:
            yield
    finally:
        if not lock.locked():  # else somebody who waited has it now
            services.taking_out.pop(canary_id, None)


async def _withheld(services: Services, canary: Canary, error: StoreError) -> StoreError:
    """Takes its share although that cannot be written, so that clients are safe; says so."""
    services.dataplane.withhold(canary.id)
    await services.dataplane.publish()
    return StoreError(
        error.why,
        f"{canary.model} is safe, stable serves every request, but its canary could not be taken out yet",
        hint=error.hint,
    )


def _take_share(
    services: Services, canary: Canary, by: str, ending: CanaryPhase, reason: str
) -> tuple[Canary, EventView]:
    """Writes that it gets nothing any more and why; takes effect with the next table."""
    event = CanaryEvent.FAIL if ending is CanaryPhase.FAILED else CanaryEvent.ABORT
    going = msgspec.structs.replace(
        canary, phase=after(canary, event), ending=canary.ending or ending, reason=canary.reason or reason
    )
    again = canary.phase is CanaryPhase.REMOVING
    with services.store.transaction():
        services.store.canaries.put(going)
        if ending is CanaryPhase.ROLLED_BACK:
            otherwise = only_runs_otherwise(canary.stable_origin, canary.origin, canary.runs_otherwise)
            services.store.canaries.reject(canary.model, canary.origin, services.now(), reason, otherwise=otherwise)
        told = services.log_event(
            by,
            EventKind.CANARY_REMOVAL_TRIED_AGAIN if again else EventKind(f"canary_{going.ending}"),
            canary.model,
            before=f"{_given(canary):g} % on {canary.origin.short}",
            after=f"100 % on {canary.stable_origin.short}",
            why=reason,
        )
    services.feed.publish(canary.id)
    return going, told


async def retire(services: Services, replicas: list[Replica]) -> None:
    """Ends replicas once their requests have ended, or `gateway.drain` is over."""
    await services.dataplane.retire(replicas, services.settings.gateway.drain)


def _given(canary: Canary) -> float:
    """What it really was given: nothing before it served."""
    return canary.share if canary.phase is CanaryPhase.SERVING else 0.0


def _ended(services: Services, canary: Canary) -> Canary:
    ended = msgspec.structs.replace(canary, phase=after(canary, CanaryEvent.REMOVED), ended=services.now())
    services.dataplane.save()
    with services.store.transaction():
        services.store.canaries.put(ended)
        services.store.models.delete(canary.name)
    services.dataplane.forget(canary.id)
    services.feed.publish(canary.id)
    return ended
