"""Whether it is a replica itself that answers at its address, as far as that can be told."""

import os

import anyio.to_thread

from llmgwd import process
from llmgwd.engines import probe
from llmgwd.engines.ports import was_taken_before
from llmgwd.engines.replica import Replica


async def is_itself(replica: Replica) -> bool:
    """By who listens there, and by what an engine that lists itself says it serves.

    Nothing is known of one that somebody else runs.
    """
    if replica.process is None:
        return True
    if not await _still_owns_port(replica, replica.process) or await _is_strangers(replica, replica.process):
        return False
    if not replica.spec.engine.lists_itself:
        return True
    async with probe.client(replica.address) as engine:
        return await probe.lists(engine, replica.spec.served_name, os.fspath(replica.spec.path))


async def _still_owns_port(replica: Replica, running: process.Process) -> bool:
    listens = await anyio.to_thread.run_sync(process.listens, running.pid, replica.port)
    # Some engines are no more than a client of what really listens: a container's, for one.
    did, replica.owns_port = replica.owns_port, listens is True
    return listens is not False or not did


async def _is_strangers(replica: Replica, running: process.Process) -> bool:
    """Whether somebody had the port by the time its process was started, and answers in its place."""
    return not replica.owns_port and await anyio.to_thread.run_sync(was_taken_before, running.pid, replica.port)
