"""One attempt to connect to a replica, told to its owner once, whatever comes first."""

import asyncio
from collections.abc import Callable

from llmgwd.gateway.upstream import Pool, UpstreamConnection


class Dial:
    """Calls `done` with a connection, or with None and why there is none; never after `cancel`."""

    __slots__ = ("_done", "_task")

    def __init__(
        self, pool: Pool, loop: asyncio.AbstractEventLoop, done: Callable[[UpstreamConnection | None, str], None]
    ) -> None:
        self._done: Callable[[UpstreamConnection | None, str], None] | None = done
        self._task = loop.create_task(pool.connect())
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        self._done = None
        self._task.cancel()

    def time_out(self) -> None:
        self._task.cancel()

    def _ended(self, task: asyncio.Task[UpstreamConnection]) -> None:
        done, self._done = self._done, None
        if task.cancelled():
            connection, why = None, "no connection in time"
        elif (error := task.exception()) is not None:
            connection, why = None, str(error)
        else:
            connection, why = task.result(), ""
        if done is not None:
            done(connection, why)
        elif connection is not None:
            connection.close()
