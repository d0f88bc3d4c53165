"""The worker's side of the link to the daemon: it hears routes, tells what happened, and comes back for ever."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection
from pathlib import Path
from typing import cast

import msgspec

from llmgwd.gateway.reports import Reports
from llmgwd.gateway.state import Gateway
from llmgwd.protocol.framing import FrameError, FrameReader, frame
from llmgwd.protocol.link import Finish, FromWorker, ReportTaken, Routes, RoutesApplied, ToWorker, WorkerHello

_log = logging.getLogger("llmgwd.gateway.link")

_BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_FRUITLESS_S = (0.1, 0.1, 0.2, 0.5, 1.0, 2.0)
"""The pause after so many links in a row on which a report was not taken.

Routes come with each link, and the daemon gives up a worker that does not follow them within 5 s.
"""
_CONNECT_TIMEOUT_S = 5.0

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ToWorker).decode


class Link(asyncio.Protocol):
    """Keeps the connection to the daemon and speaks on it."""

    def __init__(
        self,
        gateway: Gateway,
        path: Path,
        on_finish: Callable[[Finish], None],
        listeners: Callable[[], Collection[socket.socket]],
    ) -> None:
        """`listeners` gives the sockets that the worker listens on at that moment."""
        self._gateway = gateway
        self._path = path
        self._on_finish = on_finish
        self._listeners = listeners
        self._reports = Reports(gateway)
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader()
        self._lost = asyncio.Event()
        self._taken = asyncio.Event()
        self._fruitless = 0
        """Links in a row that were lost with a report that was not taken, or without a word."""
        self._was_heard = False
        """Whether anything was heard on this link."""
        self.routed = asyncio.Event()
        """Set once the first routes are in."""
        gateway.drained = self.report

    async def run(self) -> None:
        """Connects, and connects again whenever the link is lost; ends only by being cancelled."""
        attempt = 0
        while True:
            self._lost.clear()
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    await self._gateway.loop.create_unix_connection(lambda: self, str(self._path))
            except OSError as error:
                if attempt == 0:
                    _log.warning("link down path=%s reason=%s", self._path, error)
                await asyncio.sleep(_BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])
                attempt += 1
                continue
            attempt = 1
            await self._report_until_lost()
            self._fruitless = self._fruitless + 1 if self._reports.is_on_its_way or not self._was_heard else 0
            if self._fruitless < 2:
                _log.warning("link lost path=%s", self._path)
            elif self._fruitless == 2:
                _log.error("link lost again before a report was taken, tried on with pauses path=%s", self._path)
            await asyncio.sleep(_FRUITLESS_S[min(self._fruitless, len(_FRUITLESS_S) - 1)])

    async def settle(self) -> None:
        """Returns once the daemon has acknowledged everything there is to tell."""
        while not self._reports.is_settled:
            self.report()
            self._taken.clear()
            try:
                async with asyncio.timeout(self._gateway.settings.report_every_s):
                    await self._taken.wait()
            except TimeoutError:
                continue

    def report(self) -> None:
        """Sends what is new, unless a report is still on its way or there is no link: then it adds up."""
        if self._transport is None:
            return
        report = self._reports.next()
        if report is not None:
            self._say(report)

    async def _report_until_lost(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._gateway.settings.report_every_s):
                    await self._lost.wait()
                return
            except TimeoutError:
                self.report()

    def _say(self, message: FromWorker) -> None:
        if self._transport is not None:
            self._transport.write(frame(_encode(message)))

    def _say_hello(self, transport: asyncio.Transport) -> None:
        """The first words on a link, which nothing can be in the way of, with the listening sockets."""
        hello = frame(_encode(WorkerHello(worker=self._gateway.settings.worker_id, pid=os.getpid())))
        with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as link:
            socket.send_fds(link, [hello], [listener.fileno() for listener in self._listeners()])

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._fruitless < 2:
            _log.info("link up path=%s", self._path)
        self._was_heard = False
        self._transport = cast(asyncio.Transport, transport)
        self._frames = FrameReader()
        self._say_hello(self._transport)
        self._reports.linked()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost.set()

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._frames.feed(data):
                self._hear(_decode(payload))
        except (FrameError, msgspec.MsgspecError) as error:
            # A daemon that speaks otherwise is a newer or a broken one; the routes at hand go on serving.
            _log.error("link not understood reason=%s", error)
            assert self._transport is not None
            self._transport.abort()

    def _hear(self, message: ToWorker) -> None:
        self._was_heard = True
        match message:
            case Routes():
                self._gateway.apply(message)
                self.routed.set()
                self._say(RoutesApplied(message.version, self._reports.in_flight()))
                _log.info("routes applied version=%d models=%d", message.version, len(message.models))
            case ReportTaken(seq):
                self._fruitless = 0
                self._reports.taken(seq)
                self._taken.set()
                # What drained while that one was on its way is told at once, not in half a second.
                if self._gateway.has_drained:
                    self.report()
            case Finish():
                self._on_finish(message)
