"""What the catalog says is served is what runs: at a start, and when declared models change."""

import logging

import anyio.abc
import msgspec

from llmgwd.domain.catalog import CANARY_SUFFIX, Model
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.jobs import Job
from llmgwd.domain.recovery import served_meanwhile
from llmgwd.engines.replica import Replica
from llmgwd.jobs.services import Services
from llmgwd.jobs.take_out import retire

log = logging.getLogger(__name__)


def ensure_served(
    services: Services, model: Model, tasks: anyio.abc.TaskGroup, *, job: Job | None = None, at_start: bool = False
) -> None:
    """Keeps what runs as the row says and starts what is missing, which is tried again until it is ready.

    What runs otherwise serves, in `tasks`, until all of that does; the model's unfinished `job` sees to that itself.
    `at_start`: what others run for it has served all along, also while there was no daemon.
    Raises LlmgwError when the row's weights are not there: what runs then goes on.
    """
    spec = services.spec(model)
    running = services.fleet.of(model.name)
    keep = [replica for replica in running if replica.spec.runs_like(spec) and not replica.is_leaving][: model.replicas]
    for replica in keep:
        replica.spec, replica.keep_trying = spec, True
    # A canary gets nothing before it has answered.
    serves = at_start and model.canary_of is None
    new = [services.fleet.start(spec, keep_trying=True, serves=serves) for _ in range(model.replicas - len(keep))]
    old = [replica for replica in running if replica not in keep]
    if old and job is None:
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
    """At a start, before jobs are resumed: every row is served, and what no row wants is ended.

    A row whose weights are gone is said and left.
    """
    rows = {model.name: model for model in services.store.models.all()}
    jobs = {job.model: job for job in services.store.jobs.unfinished()}
    homeless = [replica for replica in services.fleet.all() if not _finds_its_row(services, replica, rows)]
    if homeless:
        tasks.start_soon(_replace, services, [], homeless)
    for row in rows.values():
        name = row.canary_of or row.name
        job = jobs.get(name)
        wanted = served_meanwhile(row, services.store.canaries.of(name), job)
        if wanted is None or row.declared:
            continue
        try:
            if job is not None and wanted == job.before:
                _serve_meanwhile(services, wanted, job)
            else:
                ensure_served(services, wanted, tasks, job=job, at_start=True)
        except LlmgwError as error:
            log.error("model not started name=%s why=%s", row.name, error.message)


def _finds_its_row(services: Services, replica: Replica, rows: dict[str, Model]) -> bool:
    """Whether a row of the catalog has a use for it.

    A promotion that was on disk when the daemon ended may not have said yet whose the canary's replica is.
    """
    if replica.owner in rows:
        return True
    model = rows.get(replica.owner.removesuffix(CANARY_SUFFIX))
    if model is None or (replica.spec.origin, replica.spec.engine_args) != (model.origin, model.engine_args):
        return False
    services.fleet.give(replica, model.name)
    return True


def _serve_meanwhile(services: Services, before: Model, job: Job) -> None:
    """Its job has moved the model and not arrived: what runs of the new weights is the job's, and may yet be ended."""
    old = [replica for replica in services.fleet.of(before.name) if replica.id in job.replaced]
    spec = services.spec(before)
    new = [services.fleet.new_id(spec) for _ in range(before.replicas - len(old))]
    # Before they run: a job that does not know them would take them for its own new ones.
    services.store.jobs.save(msgspec.structs.replace(job, replaced=(*job.replaced, *new)))
    for replica in new:
        services.fleet.start(spec, keep_trying=True, replica_id=replica, serves=True)
