"""The data plane as the rest of the daemon sees it: routes that hold once published, drains, and the arms' samples."""

import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path

import anyio

from llmgwd.dataplane.bench import Bench
from llmgwd.dataplane.link import Link
from llmgwd.dataplane.routes import routing_table
from llmgwd.dataplane.suspicion import Suspicion
from llmgwd.dataplane.tally import Tally
from llmgwd.dataplane.workers import Workers
from llmgwd.domain.errors import LlmgwError
from llmgwd.engines.fleet import Fleet
from llmgwd.engines.replica import Replica
from llmgwd.protocol.link import Report
from llmgwd.store.database import StoreError
from llmgwd.store.store import Store

log = logging.getLogger(__name__)

ACKNOWLEDGE_S = 5.0
SAVE_EVERY_S = 0.5
"""At most: as often as a worker reports."""


def read_keys(path: Path | None) -> tuple[bytes, ...] | None:
    """SHA-256 of each key in the file, one a line; None without a file. Raises LlmgwError when it cannot be read."""
    if path is None:
        return None
    try:
        lines = path.read_text().split("\n")
    except (OSError, ValueError) as error:
        raise LlmgwError("no_keys", f"gateway.api_keys_file {str(path)!r} cannot be read: {error}") from error
    keys = [line.strip() for line in lines]
    return tuple(hashlib.sha256(key.encode()).digest() for key in keys if key and not key.startswith("#"))


class Dataplane:
    """Publishes the routing table and says when a replica has no request left."""

    def __init__(self, store: Store, fleet: Fleet, link: Link, workers: Workers, tally: Tally, bench: Bench) -> None:
        self._store = store
        self._fleet = fleet
        self._workers = workers
        self.link = link
        self.tally = tally
        self.bench = bench
        self.suspicion = Suspicion()
        self.key_hashes: tuple[bytes, ...] | None = None
        self._withheld: set[str] = set()
        """Canaries, by id, that get nothing whatever the store says, which could not be told."""
        self._version = 0
        self._publishing = anyio.Lock()
        self._wanted = anyio.Event()

    def take(self, report: Report) -> None:
        """What a worker counted. Raises LlmgwError, having taken nothing, when the database cannot be read."""
        of_samples = {sample.canary for sample in report.samples if sample.canary}
        for canary in of_samples | {each.canary for each in report.looks} | {each.canary for each in report.loads}:
            # All that can fail comes first: the worker sends the whole report again.
            self.tally.read(canary)
            self.bench.read(canary)
        self.tally.add(report.samples)
        self.bench.add_loads(report.loads, report.samples)
        self.suspicion.add(self.bench.add(report.looks))

    def save(self) -> None:
        """Writes all that was counted and the numbers of the reports that it came in: all of it, or nothing.

        Has a transaction of its own. Raises StoreError.
        """
        with self._store.transaction():
            self.tally.write()
            self.bench.write()
            self._store.processes.save_reports(self.link.last_reports)
        # After the commit: what could not be written is tried again.
        self.tally.written()
        self.bench.written()

    async def keep_saved(self) -> None:
        """Saves what workers counted as it comes and tells them then that they need not keep it, until cancelled."""
        is_failing = False
        while True:
            await self.link.awaits_saving()
            try:
                self.save()
                is_failing = False
            except StoreError as error:
                # They are told all the same: a worker that keeps a report says nothing newer, nor what drains.
                if not is_failing:
                    log.error("what was counted is not written, to be tried again why=%s", error.message)
                is_failing = True
            await self.link.acknowledge()
            await anyio.sleep(SAVE_EVERY_S)

    def forget(self, canary: str) -> None:
        """Drops what was counted of a canary; to be called once it is saved and the canary's end has committed."""
        self.tally.forget(canary)
        self.bench.forget(canary)
        self._withheld.discard(canary)

    def withhold(self, canary: str, *, withheld: bool = True) -> None:
        """With the next table this canary gets nothing, until this life of the daemon ends or it is lifted."""
        (self._withheld.add if withheld else self._withheld.discard)(canary)

    def wish(self) -> None:
        """Asks for the table to be published soon; many wishes become one."""
        self._wanted.set()

    async def fulfil_wishes(self) -> None:
        """Publishes whenever it was wished for, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            try:
                await self.publish()
            except Exception:
                self.wish()
                raise

    async def publish(self) -> int:
        """Brings the present state into every worker; returns the table's version.

        Once it returns no new request follows an older table: a worker that does not say so in time is ended, and its
        successor starts with this one.
        """
        async with self._publishing:
            # Cancelled in the middle, some workers would have the table and others not.
            with anyio.CancelScope(shield=True):
                await self._publish_next()
            return self._version

    async def _publish_next(self) -> None:
        self._version += 1
        await self.link.push(
            routing_table(
                self._version,
                self._store.models.all(),
                [canary for canary in self._store.canaries.running() if canary.id not in self._withheld],
                self._fleet.ready,
                self.key_hashes,
            )
        )
        for pid in await self.link.applied(self._version, lambda: self._workers.pids, ACKNOWLEDGE_S):
            log.error("gateway worker does not follow its routes pid=%d version=%d", pid, self._version)
            await self._workers.end(pid)

    async def retire(self, replicas: Iterable[Replica], within_s: float) -> None:
        """Takes replicas out of the routes, all at once, lets their requests end within `within_s`, and stops them.

        Raises LlmgwError when one does not end; the others have.
        """
        leaving = list(replicas)
        for replica in leaving:
            self._fleet.drain(replica)
        version = await self.publish()
        problems: list[LlmgwError] = []

        async def stop(replica: Replica) -> None:
            left = await self.link.drained(replica.id, version, lambda: self._workers.pids, within_s)
            if left:
                log.warning("replica not drained id=%s in_flight=%d after_s=%g", replica.id, left, within_s)
            try:
                await self._fleet.stop(replica)
            except LlmgwError as error:
                problems.append(error)

        async with anyio.create_task_group() as tasks:
            for replica in leaving:
                tasks.start_soon(stop, replica)
        if problems:
            raise problems[0]
