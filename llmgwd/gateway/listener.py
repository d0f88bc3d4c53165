"""The socket that clients connect to, and how connections are taken from it."""

import asyncio
import logging
import socket
from collections.abc import Callable

_log = logging.getLogger("llmgwd.gateway")

_BACKLOG = 4096
_A_TURN = 64
"""Connections taken in one turn of the loop at most: those that are open already must not wait for a crowd."""


class Listener:
    """Takes connections from one listening socket.

    uvloop's server takes one a turn, so that a crowd would wait a turn each. So whenever it takes one, what else waits
    is taken here. Taking all of them here costs half as much again for each, and so do many servers on one socket,
    which all wake for every connection.
    """

    def __init__(
        self, sock: socket.socket, loop: asyncio.AbstractEventLoop, protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        self._socket = sock
        self._loop = loop
        self._protocol = protocol
        self._server: asyncio.Server | None = None
        self._opening: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await self._loop.create_server(self._take_crowd, sock=self._socket.dup(), backlog=_BACKLOG)

    async def close(self, *, takes_waiting: bool) -> None:
        """Takes what the kernel has connected already, unless others do, and closes; returns when all that is open."""
        if self._server is not None:
            self._server.close()
        if takes_waiting:
            self._take(_BACKLOG)
        self._socket.close()
        # What the server took last is opened in this turn.
        await asyncio.sleep(0)
        if self._opening:
            await asyncio.wait(self._opening)

    def _take_crowd(self) -> asyncio.Protocol:
        """For the one connection that the server took: whoever waits behind it need not wait for another turn."""
        self._take(_A_TURN)
        return self._protocol()

    def _take(self, most: int) -> None:
        for _ in range(most):
            try:
                connection, _ = self._socket.accept()
            except ConnectionAbortedError:
                continue
            except OSError:
                # None waits; or files have run out, which the server deals with.
                return
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError as error:
            connection.close()
            _log.warning("connection not opened reason=%s", error)


def open_listener(address: str, *, reuse_port: bool) -> socket.socket:
    """A listening socket on HOST:PORT or [HOST]:PORT. Raises OSError, ValueError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.setblocking(False)
    listener.bind((host, int(port)))
    listener.listen(_BACKLOG)
    return listener
