"""Replicas of a model's new weights take over from those of its old ones: new before old, none without an answer."""

from llmgwd.domain.errors import LlmgwError
from llmgwd.jobs.run import Run
from llmgwd.jobs.take_out import retire

TAKE_OVER_WITHIN_S = 60.0
"""How long a replica that was ready before may take to be so again."""


async def start_missing(run: Run) -> int:
    """Brings `run.replicas` to as many as `run.model` wants, all of them ready; returns how many were started.

    Raises LlmgwError when one does not become ready; the old ones serve on.
    """
    services, model = run.services, run.model
    assert model is not None
    for replica in run.replicas:
        await services.fleet.ensure_ready(replica, TAKE_OVER_WITHIN_S)
    started = 0
    while len(run.replicas) < model.replicas:
        replica = services.fleet.start(services.spec(model))
        run.replicas.append(replica)
        run.detail(f"starting {replica.id}")
        await services.fleet.ensure_ready(replica)
        started += 1
        await services.dataplane.publish()
    return started


async def stop_others(run: Run) -> int:
    """Drains and ends the model's replicas that are not in `run.replicas`; returns how many."""
    services, model = run.services, run.model
    assert model is not None
    keep = {replica.id for replica in run.replicas}
    old = [replica for replica in services.fleet.of(model.name) if replica.id not in keep]
    if old:
        run.detail(f"draining {', '.join(replica.id for replica in old)}")
        await retire(services, old)
    return len(old)


async def stop_failed(run: Run) -> None:
    """Ends those of `run.replicas` that never were ready."""
    services = run.services
    failed = [replica for replica in run.replicas if replica.failure is not None]
    await retire(services, failed)


def not_taken_over(run: Run, error: LlmgwError) -> LlmgwError:
    """The failure of a model that has moved while its old replicas still serve."""
    assert run.model is not None
    return LlmgwError(
        error.code,
        f"{error.message}; the old replicas of {run.model.name} serve on beside what is ready of the new",
        hint=f"go back with `llmgw ctl model rollback {run.model.name}`; {error.hint}".rstrip("; "),
        status=error.status,
    )
