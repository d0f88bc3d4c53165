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
    """Judges each canary once. A failure to take one out is logged, and tried again at the next look."""
    services.dataplane.tally.save()
    for canary in services.store.canaries.running():
        services.feed.publish(canary.id)
        if canary.phase is not CanaryPhase.SERVING or canary.share == 0:
            continue
        if services.store.jobs.of(canary.model) is not None:
            continue
        verdict = verdict_on(services, canary)
        if verdict.state != "worse":
            continue
        try:
            await take_out(services, canary, by=LLMGW, ending=CanaryPhase.ROLLED_BACK, reason=verdict.sentence)
        except LlmgwError as error:
            log.error("canary not taken out model=%s why=%s", canary.model, error.message)
