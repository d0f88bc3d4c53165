"""A gateway worker: `python -m llmgwd.gateway.worker --link SOCKET --listen HOST:PORT --worker-id ID`.

It listens there itself, or on the sockets that it was started with (`--listen-fd`).
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import sys
from pathlib import Path

import uvloop

from llmgwd.gateway.client import MOST_EXCESS, ClientConnection
from llmgwd.gateway.link import Link
from llmgwd.gateway.listener import Listener, open_listener
from llmgwd.gateway.settings import Settings
from llmgwd.gateway.state import SWEEP_S, Gateway
from llmgwd.protocol.link import Finish

_log = logging.getLogger("llmgwd.gateway")

_ROUTES_WAIT_S = 1.0
_SETTLE_S = 2.0
_OWN_FILES = 64
_OPTIONS = (
    ("max-body", "max_body_bytes", "BYTES"),
    ("max-connections", "max_connections", "N"),
    ("max-in-flight", "max_in_flight", "N"),
    ("queue", "queue", "N"),
    ("head-timeout", "head_timeout_s", "SECONDS"),
    ("body-timeout", "body_timeout_s", "SECONDS"),
    ("idle-timeout", "idle_timeout_s", "SECONDS"),
    ("connect-timeout", "connect_timeout_s", "SECONDS"),
    ("reply-timeout", "reply_timeout_s", "SECONDS"),
    ("upstream-idle", "upstream_idle_s", "SECONDS"),
    ("upstream-idle-connections", "upstream_idle_connections", "N"),
    ("report-every", "report_every_s", "SECONDS"),
    ("drain", "drain_s", "SECONDS"),
)
"""Options and the settings they set; what each means stands there."""


class Worker:
    """Wires the parts and orders their end."""

    def __init__(self, settings: Settings, link_path: Path, sockets: list[socket.socket]) -> None:
        """`sockets` listen, and are this worker's to close."""
        self._settings = settings
        self._sockets = sockets
        self._gateway = Gateway(settings, asyncio.get_running_loop())
        self._link = Link(self._gateway, link_path, self.finish, lambda: self._sockets)
        self._told: asyncio.Future[Finish] = asyncio.get_running_loop().create_future()
        self._is_sound = True

    def finish(self, told: Finish) -> None:
        """Begins the end; only the first word of it counts."""
        if not self._told.done():
            self._told.set_result(told)

    async def run(self) -> bool:
        """Serves until told to finish, then drains. Returns when all is told or the time for it is over.

        False: nobody told it, a part of it failed, and another should take its place.
        """
        loop = self._gateway.loop
        loop.add_signal_handler(signal.SIGTERM, self.finish, Finish(self._settings.drain_s))
        for ignored in (signal.SIGINT, signal.SIGHUP):
            # They are meant for the daemon's terminal; it says `Finish` when it wants this to end.
            loop.add_signal_handler(ignored, lambda: None)
        parts = [loop.create_task(self._link.run(), name="link"), loop.create_task(self._sweep(), name="sweep")]
        for part in parts:
            part.add_done_callback(self._part_ended)
        listeners = await self._listen()
        _log.info("serving address=%s worker=%s", self._sockets[0].getsockname(), self._settings.worker_id)
        told = await self._told
        self._sockets = []
        for listener in listeners:
            # Who takes this one's place takes over the sockets, with those who wait there.
            await listener.close(takes_waiting=not told.is_replaced)
        await self._drain(told)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await self._link.settle()
        for part in parts:
            part.cancel()
        return self._is_sound

    def _part_ended(self, part: asyncio.Task[None]) -> None:
        if not part.cancelled():
            # Without deadlines, or without a word to the daemon, it would only look as if it served.
            _log.error(
                "a part of the worker ended, and so does the worker part=%s", part.get_name(), exc_info=part.exception()
            )
            self._is_sound = False
            self.finish(Finish(self._settings.drain_s))

    async def _listen(self) -> list[Listener]:
        # The sockets listen already: who connects now waits for the first routes rather than being told there are none.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ROUTES_WAIT_S):
                await self._link.routed.wait()
        loop = self._gateway.loop
        listeners = [Listener(each, loop, lambda: ClientConnection(self._gateway)) for each in self._sockets]
        for listener in listeners:
            await listener.start()
        return listeners

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._gateway.sweep()

    async def _drain(self, told: Finish) -> None:
        _log.info("finishing drain_s=%g connections=%d", told.drain_s, len(self._gateway.clients))
        empty = asyncio.Event()
        self._gateway.emptied = empty.set
        self._gateway.finish(closes_idle=not told.is_replaced)
        if self._gateway.clients:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(told.drain_s):
                    await empty.wait()
        self._gateway.turn_away()
        if self._gateway.clients:
            _log.warning("cut connections=%d", len(self._gateway.clients))
            empty.clear()
            self._gateway.abort()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await empty.wait()


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    defaults = Settings(worker_id="")
    parser = argparse.ArgumentParser(prog="llmgwd.gateway.worker")
    parser.add_argument("--link", type=Path, required=True, help="the daemon's socket for its workers")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--listen", metavar="HOST:PORT")
    where.add_argument("--listen-fd", type=int, action="append", metavar="FD", help="a socket that listens already")
    parser.add_argument("--worker-id", required=True, help="unique for the life of this process")
    parser.add_argument("--reuse-port", action="store_true", help="share the address with other workers")
    for name, setting, unit in _OPTIONS:
        default = getattr(defaults, setting)
        parser.add_argument(f"--{name}", dest=setting, type=type(default), default=default, metavar=unit)
    return parser.parse_args(argv)


def settings_from(arguments: argparse.Namespace) -> Settings:
    return Settings(
        worker_id=arguments.worker_id, **{setting: getattr(arguments, setting) for _, setting, _ in _OPTIONS}
    )


def files_wanted(settings: Settings) -> int:
    """Open files for every connection allowed and one to an engine for each, for those that are told there is no room,
    for idle connections to engines, and for the worker's own.
    """
    return 2 * settings.max_connections + MOST_EXCESS + settings.upstream_idle_connections + _OWN_FILES


def raise_file_limit(settings: Settings) -> None:
    """Makes room for the files wanted, as far as the system lets."""
    wanted = files_wanted(settings)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        _log.warning("open files are limited limit=%d max_connections=%d", most, settings.max_connections)


def sockets_from(arguments: argparse.Namespace) -> list[socket.socket]:
    """Raises OSError, ValueError."""
    if arguments.listen is not None:
        return [open_listener(arguments.listen, reuse_port=arguments.reuse_port)]
    inherited = [socket.socket(fileno=fd) for fd in arguments.listen_fd]
    for listener in inherited:
        listener.setblocking(False)
    return inherited


async def _run(settings: Settings, link_path: Path, sockets: list[socket.socket]) -> bool:
    return await Worker(settings, link_path, sockets).run()


def main(argv: list[str]) -> int:
    arguments = parse_arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    try:
        sockets = sockets_from(arguments)
    except (OSError, ValueError) as error:
        _log.error("cannot listen address=%s reason=%s", arguments.listen or arguments.listen_fd, error)
        return 1
    settings = settings_from(arguments)
    raise_file_limit(settings)
    # What was imported stays; the collector need not look at it again and again.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    return 0 if uvloop.run(_run(settings, arguments.link, sockets)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
