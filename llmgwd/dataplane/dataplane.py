"""The data plane as the rest of the daemon sees it: routes that hold once published, drains, and the arms' samples."""

import hashlib
import logging
from pathlib import Path

import anyio

from llmgwd.dataplane.link import Link
from llmgwd.dataplane.routes import routing_table
from llmgwd.dataplane.tally import Tally
from llmgwd.dataplane.workers import Workers
from llmgwd.domain.errors import LlmgwError
from llmgwd.engines.fleet import Fleet
from llmgwd.engines.replica import Replica
from llmgwd.store.store import Store

log = logging.getLogger(__name__)

ACKNOWLEDGE_S = 5.0


def read_keys(path: Path | None) -> tuple[bytes, ...] | None:
    """SHA-256 of each key in the file, one a line; None without a file. Raises LlmgwError when it cannot be read."""
    if path is None:
        return None
    try:
        lines = path.read_text().split("\n")
    except OSError as error:
        raise LlmgwError("no_keys", f"gateway.api_keys_file {path} cannot be read: {error.strerror}") from error
    keys = [line.strip() for line in lines]
    return tuple(hashlib.sha256(key.encode()).digest() for key in keys if key and not key.startswith("#"))


class Dataplane:
    """Publishes the routing table and says when a replica has no request left."""

    def __init__(self, store: Store, fleet: Fleet, link: Link, workers: Workers, tally: Tally) -> None:
        self._store = store
        self._fleet = fleet
        self._workers = workers
        self.link = link
        self.tally = tally
        self.key_hashes: tuple[bytes, ...] | None = None
        self._version = 0
        self._publishing = anyio.Lock()
        self._wanted = anyio.Event()

    def wish(self) -> None:
        """Asks for the table to be published soon; many wishes become one."""
        self._wanted.set()

    async def fulfil_wishes(self) -> None:
        """Publishes whenever it was wished for, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            await self.publish()

    async def publish(self) -> int:
        """Brings the present state into every worker; returns the table's version.

        Once it returns no new request follows an older table: a worker that does not say so in time is ended, and its
        successor starts with this one.
        """
        async with self._publishing:
            self._version += 1
            await self.link.push(
                routing_table(
                    self._version,
                    self._store.models.all(),
                    self._store.canaries.running(),
                    self._fleet.ready,
                    self.key_hashes,
                )
            )
            for worker in await self.link.applied(self._version, ACKNOWLEDGE_S):
                log.error("gateway worker does not follow its routes pid=%d version=%d", worker.pid, self._version)
                await self._workers.end(worker.pid)
            return self._version

    async def drain(self, replica: Replica, within_s: float) -> int:
        """Takes a replica out of the routes and waits until it has no request; returns how many it still has."""
        self._fleet.drain(replica)
        version = await self.publish()
        left = await self.link.drained(replica.id, version, within_s)
        if left:
            log.warning("replica not drained id=%s in_flight=%d after_s=%g", replica.id, left, within_s)
        return left
