"""Replicas of a model's new weights take over from those of its old ones: new before old, none without an answer."""

from llmgwd.domain.errors import LlmgwError
from llmgwd.engines.replica import Replica
from llmgwd.jobs.room import make_room
from llmgwd.jobs.run import Run
from llmgwd.jobs.take_out import retire
from llmgwd.protocol.states import ReplicaState

TAKE_OVER_WITHIN_S = 60.0
"""How long a replica that was ready before may take to be so again."""


async def start_missing(run: Run) -> tuple[int, int]:
    """Brings the new replicas to as many as the model wants, all of them ready, while the old serve on.

    Where there is no room for both, an old one ends before each new one, as long as another serves. Returns how many
    were started and how many old ones ended. Raises LlmgwError when one does not become ready.
    """
    for replica in run.new:
        await _wait_ready(run, replica)
    started = stopped = 0
    while len(run.new) < run.model.replicas:
        stopped += await make_room(run)
        await _start_one(run)
        started += 1
    return started, stopped


async def replace_in_turn(run: Run) -> tuple[int, int]:
    """Replaces the old replicas one at a time, each only once there is a new one in its place.

    Never more run than the model wants and one. Returns how many were started and how many old ones ended. Raises
    LlmgwError when a new one does not become ready; those old ones that are left serve on beside it.
    """
    for replica in run.new:
        await _wait_ready(run, replica)
    wanted, started, stopped = run.model.replicas, 0, 0
    while True:
        # Enough serve without these, first of all those that do not serve.
        old = sorted(run.old, key=lambda replica: replica.state is ReplicaState.READY)
        surplus = old[: max(0, len(run.new) + len(old) - wanted)]
        if surplus:
            run.detail(f"draining {', '.join(replica.id for replica in surplus)}")
            await retire(run.services, surplus)
            stopped += len(surplus)
        if len(run.new) >= wanted:
            return started, stopped
        stopped += await make_room(run)
        await _start_one(run)
        started += 1


async def stop_old(run: Run) -> int:
    """Drains and ends the old replicas; returns how many."""
    old = run.old
    if old:
        run.detail(f"draining {', '.join(replica.id for replica in old)}")
        await retire(run.services, old)
    return len(old)


async def stop_failed(run: Run) -> None:
    """Ends those of the new replicas that never were ready."""
    await retire(run.services, [replica for replica in run.new if replica.failure is not None])


async def _start_one(run: Run) -> None:
    """One more new replica, ready and in the routes."""
    services = run.services
    # A model that has moved for good and that nobody serves is not left alone by one failure.
    forlorn = run.job.committed and not services.fleet.ready(run.job.model)
    replica = services.fleet.start(services.spec(run.model), keep_trying=forlorn)
    run.detail(f"starting {replica.id}")
    await _wait_ready(run, replica)
    await services.dataplane.publish()


async def _wait_ready(run: Run, replica: Replica) -> None:
    """Raises LlmgwError when it fails, or takes longer than its engine may."""
    await run.services.fleet.ensure_ready(replica, replica.spec.engine.ready_timeout_s + TAKE_OVER_WITHIN_S)


def not_taken_over(run: Run, error: LlmgwError) -> LlmgwError:
    """The failure of a model that has moved while its old replicas still serve."""
    return LlmgwError(
        error.code,
        f"{error.message}; the old replicas of {run.job.model} serve on beside what is ready of the new",
        hint=f"go back with `llmgw ctl model rollback {run.job.model}`; {error.hint}".rstrip("; "),
        status=error.status,
    )
