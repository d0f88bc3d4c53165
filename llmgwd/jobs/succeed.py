"""Replicas of a model's new weights take over from those of its old ones: new before old, none without an answer."""

from llmgwd.jobs.run import Run
from llmgwd.jobs.take_out import drain_and_stop


async def start_missing(run: Run) -> int:
    """Starts replicas of `run.model` beside those in `run.replicas` until there are as many as it wants, all ready.

    Returns how many were started. Raises LlmgwError when one does not become ready; the old ones serve on.
    """
    services, model = run.services, run.model
    assert model is not None
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
    # All out of the routes at once: no request may go to the weights that the model has left.
    for replica in old:
        services.fleet.drain(replica)
    for replica in old:
        run.detail(f"draining {replica.id}")
        await drain_and_stop(services, replica)
    return len(old)
