"""The end of a replica on GPUs: over once they have its memory again."""

import logging

import anyio
import anyio.to_thread

from llmgwd import process
from llmgwd.engines.gpus import Gpus, unreleased

RELEASE_WAIT_S = 30.0
"""How long a GPU may take to have the memory of ended processes again."""
RELEASE_LOOK_S = 0.1

log = logging.getLogger(__name__)


async def end_on_gpus(gpus: Gpus, replica: str, running: process.Process, grace_s: float) -> bool:
    """Whether it ended. Returns once the GPUs have its memory again too, or RELEASE_WAIT_S is over."""
    pids = {running.pid, *await anyio.to_thread.run_sync(running.members)}
    before = await anyio.to_thread.run_sync(gpus.look)
    if not await running.end(grace_s):
        return False
    left: dict[int, int] = {}
    with anyio.move_on_after(RELEASE_WAIT_S):  # a driver signals nothing
        while left := unreleased(before, await anyio.to_thread.run_sync(gpus.look), pids):  # noqa: ASYNC110
            await anyio.sleep(RELEASE_LOOK_S)
    for gpu, left_bytes in left.items():
        log.error("gpu memory of an ended replica is not free id=%s gpu=%d bytes=%d", replica, gpu, left_bytes)
    return True
