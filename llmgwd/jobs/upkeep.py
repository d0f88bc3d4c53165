"""What the catalog says is served is what runs: at a start, and when declared models change."""

import logging

import anyio.abc

from llmgwd.domain.catalog import Model
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.jobs import Job
from llmgwd.engines.replica import Replica
from llmgwd.jobs.services import Services
from llmgwd.jobs.take_out import retire
from llmgwd.protocol.states import JobKind, StepState

log = logging.getLogger(__name__)


def ensure_served(services: Services, model: Model, tasks: anyio.abc.TaskGroup) -> None:
    """Keeps what runs as the row says and starts what is missing, which is tried again until it is ready.

    What runs otherwise serves, in `tasks`, until all of that does. Raises LlmgwError when the row's weights are not
    there: what runs then goes on.
    """
    spec = services.spec(model)
    running = services.fleet.of(model.name)
    keep = [replica for replica in running if replica.spec.runs_like(spec) and not replica.is_leaving][: model.replicas]
    for replica in keep:
        replica.spec, replica.keep_trying = spec, True
    new = [services.fleet.start(spec, keep_trying=True) for _ in range(model.replicas - len(keep))]
    old = [replica for replica in running if replica not in keep]
    if old:
        tasks.start_soon(_replace, services, [*keep, *new], old)


async def _replace(services: Services, new: list[Replica], old: list[Replica]) -> None:
    """Ends the old once all the new answer. A later change that ends the new before that takes the old over as well."""
    try:
        for replica in new:
            await services.fleet.ensure_ready(replica)
        await retire(services, old)
    except LlmgwError as error:
        log.info("what ran before was not replaced why=%s", error.message)


def go_on(services: Services, tasks: anyio.abc.TaskGroup) -> None:
    """At a start: what runs goes to the row that it serves, every row is served, and what no row wants is ended."""
    rows = {model.name: model for model in services.store.models.all()}
    for replica in services.fleet.all():
        # A promotion was written down, and its daemon ended before it had said whose the canary's replica is now.
        if replica.owner not in rows and replica.spec.served_name in rows:
            services.fleet.give(replica, replica.spec.served_name)
    unwanted = [replica for replica in services.fleet.all() if replica.owner not in rows]
    if unwanted:
        tasks.start_soon(_replace, services, [], unwanted)
    for model in rows.values():
        job = services.store.jobs.of(model.canary_of or model.name)
        if model.declared or (job is not None and is_jobs(model, job)):
            continue
        try:
            ensure_served(services, model, tasks)
        except LlmgwError as error:
            log.error("model not started name=%s why=%s", model.name, error.message)


def is_jobs(model: Model, job: Job) -> bool:
    """Whether this unfinished job sees to the replicas of that row itself."""
    if model.canary_of is not None or job.kind is JobKind.REMOVE:
        return True
    catalog = next((step for step in job.steps if step.name == "catalog"), None)
    return job.kind is not JobKind.CANARY and catalog is not None and catalog.state is not StepState.PENDING
