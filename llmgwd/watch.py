"""The watch loop: looks at every canary, takes out the one that serves worse, and carries out its plan (K11)."""

import logging
from collections.abc import Collection
from typing import Protocol

import anyio
import anyio.lowlevel
import msgspec

from llmgwd.domain.canary import Canary
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.plan import GiveShare, GiveUp, PromoteIt, Standing, TellDeadline, next_move
from llmgwd.jobs.services import Services
from llmgwd.jobs.share import give_share
from llmgwd.jobs.take_out import take_out
from llmgwd.protocol import messages as m
from llmgwd.protocol.states import CanaryPhase, EventKind, VerdictState
from llmgwd.store.database import StoreError
from llmgwd.verdict.decision import State
from llmgwd.verdict.load import Slots

log = logging.getLogger(__name__)

LLMGW = "llmgw"
"""Who the loop is in the event log."""


class Door(Protocol):
    """The verbs that the loop asks for as a person would."""

    async def promote(self, request: m.Promote, by: str) -> m.Started: ...
    async def abort(self, request: m.Abort, by: str) -> m.Done: ...


async def watch(services: Services, door: Door) -> None:
    """Looks at all of them every `canary.every`, and at one at once after its bad answer, until cancelled."""
    acted_on: set[str] = set()
    looked_at = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        while True:
            with anyio.move_on_at(looked_at + services.settings.canary.every):
                await services.dataplane.suspicion.arisen()
            suspects, now = services.dataplane.suspicion.take(), anyio.current_time()
            is_due = now >= looked_at + services.settings.canary.every
            if is_due:
                looked_at = now
            for canary in await look(services, None if is_due else suspects):
                if canary.id not in acted_on:
                    # One that drains, for minutes perhaps, must not keep the others from being judged.
                    acted_on.add(canary.id)
                    tasks.start_soon(_look_at, services, door, canary.id, acted_on)


async def look(services: Services, only: Collection[str] | None) -> list[Canary]:
    """Closes the looks that are over, of the canaries that run, or of those with these ids, and gives these."""
    now = services.now()
    canaries = [each for each in services.store.canaries.running() if only is None or each.id in only]
    for canary in canaries:
        # A thousand of them take a while, and others have things to do meanwhile.
        await anyio.lowlevel.checkpoint()
        if canary.phase is CanaryPhase.SERVING and canary.share > 0:
            stable_down = not services.fleet.ready(canary.model)
            slots = Slots(_slots(services, canary.name), _slots(services, canary.model))
            services.dataplane.bench.close_looks(canary, now, stable_down=stable_down, slots=slots)
        services.feed.publish(canary.id)
    try:
        services.dataplane.save()
    except StoreError as error:
        log.error("what was counted is not written, to be tried again why=%s", error.message)
    return canaries


def _slots(services: Services, owner: str) -> int | None:
    """Requests that the ready replicas decode at once; None when one does not tell."""
    each = [replica.spec.slots for replica in services.fleet.ready(owner)]
    known = [slots for slots in each if slots]
    return sum(known) if len(known) == len(each) else None


async def _look_at(services: Services, door: Door, canary_id: str, acted_on: set[str]) -> None:
    """Acts on the verdict or the plan, or goes on with a removal that left something; then it is acted on no more."""
    try:
        # Read anew: a verb may have changed it since the look began, and what is written back must not undo that.
        canary = services.store.canaries.find(canary_id)
        if canary is None or not canary.runs or services.store.jobs.of(canary.model) is not None:
            return
        if canary.phase is CanaryPhase.REMOVING:
            await _go_on_removing(services, canary)
        elif canary.phase is CanaryPhase.SERVING:
            await _judge(services, door, canary)
    except LlmgwError as error:
        log.error("canary not acted on, to be tried again id=%s why=%s", canary_id, error.message)
    except Exception:
        log.exception("canary not acted on, to be tried again id=%s", canary_id)
    finally:
        acted_on.discard(canary_id)


async def finish_removals(services: Services) -> None:
    """Goes on at once with what was being taken out, by no job, when the daemon ended."""
    for canary in services.store.canaries.running():
        if canary.phase is CanaryPhase.REMOVING and services.store.jobs.of(canary.model) is None:
            try:
                await _go_on_removing(services, canary)
            except LlmgwError as error:
                log.error("canary not taken out, to be tried again model=%s why=%s", canary.model, error.message)


async def _go_on_removing(services: Services, canary: Canary) -> None:
    ending = canary.ending or CanaryPhase.ABORTED
    await take_out(services, canary.id, by=LLMGW, ending=ending, reason=canary.reason)


async def _judge(services: Services, door: Door, canary: Canary) -> None:
    now = services.now()
    decision = services.dataplane.bench.decide(canary, now, services.settings.canary.min_age)
    if decision is None or canary.progress is None:
        return
    if canary.share > 0 and decision.state is State.WORSE:
        report = services.dataplane.bench.report(canary, now, services.settings.canary.min_age)
        assert report is not None
        await take_out(services, canary.id, by=LLMGW, ending=CanaryPhase.ROLLED_BACK, reason=report.sentence)
        return
    judged, is_ready = services.dataplane.bench.judged(canary.id), bool(services.fleet.ready(canary.name))
    standing = Standing(VerdictState(decision.state), canary.share, judged, is_ready)
    move = next_move(canary.plan, canary.progress, standing, now)
    match move:
        case GiveShare(step, percent):
            progress = msgspec.structs.replace(canary.progress, step=step, step_since=now, judged_before=judged)
            why = f"step {step + 1} of {len(canary.plan.steps)}"
            await give_share(services, canary.model, percent, by=LLMGW, why=why, progress=progress, is_plans=True)
        case PromoteIt():
            await door.promote(m.Promote(canary.model), LLMGW)
        case GiveUp():
            await door.abort(m.Abort(canary.model, "still undecided at its deadline"), LLMGW)
        case TellDeadline():
            _tell_deadline(services, canary)


def _tell_deadline(services: Services, canary: Canary) -> None:
    assert canary.progress is not None
    told = msgspec.structs.replace(canary.progress, deadline_told=True)
    with services.store.transaction():
        services.store.canaries.put(msgspec.structs.replace(canary, progress=told))
        event = services.log_event(
            LLMGW, EventKind.CANARY_UNDECIDED, canary.model, after=f"{canary.share:g} %", why="its deadline has passed"
        )
    services.announce(event)
