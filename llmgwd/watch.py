"""The watch loop: looks at every canary that gets requests, and takes out the one that serves worse (K11)."""

import logging

import anyio

from llmgwd.domain.canary import Canary
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.samples import bad, judged
from llmgwd.jobs.services import Services
from llmgwd.jobs.take_out import take_out
from llmgwd.protocol.samples import Arm, ArmSample
from llmgwd.protocol.states import CanaryPhase
from llmgwd.verdict.judge import Figures, Verdict, judge

log = logging.getLogger(__name__)

LLMGW = "llmgw"
"""Who the loop is in the event log."""


def figures_of(sample: ArmSample) -> Figures:
    """What the judge needs of an arm's samples."""
    return Figures(judged(sample), bad(sample), sample.length_limited, sample.ttft, sample.token_time)


def verdict_on(services: Services, canary: Canary) -> Verdict:
    """What the samples over this canary's life show now."""
    tally = services.dataplane.tally
    return judge(
        figures_of(tally.of(canary, Arm.STABLE)),
        figures_of(tally.of(canary, Arm.CANARY)),
        services.settings.canary.limits,
    )


async def watch(services: Services) -> None:
    """Looks every `canary.every`, until cancelled."""
    while True:
        await anyio.sleep(services.settings.canary.every)
        await look(services)


async def look(services: Services) -> None:
    """Judges each canary once, none waiting for another's end."""
    with services.store.transaction():
        services.dataplane.tally.save()
    async with anyio.create_task_group() as tasks:
        for canary in services.store.canaries.running():
            services.feed.publish(canary.id)
            tasks.start_soon(_look_at, services, canary)


async def _look_at(services: Services, canary: Canary) -> None:
    """Takes it out when it is worse, or when an earlier try to take it out left something."""
    if services.store.jobs.of(canary.model) is not None:
        return
    if canary.phase is CanaryPhase.REMOVING:
        ending, reason = canary.ending or CanaryPhase.ABORTED, canary.reason
    elif canary.phase is CanaryPhase.SERVING and canary.share > 0:
        verdict = verdict_on(services, canary)
        if verdict.state != "worse":
            return
        ending, reason = CanaryPhase.ROLLED_BACK, verdict.sentence
    else:
        return
    try:
        await take_out(services, canary.id, by=LLMGW, ending=ending, reason=reason)
    except LlmgwError as error:
        log.error("canary not taken out, to be tried again model=%s why=%s", canary.model, error.message)
