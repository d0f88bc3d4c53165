"""What one worker has: the present table, the replicas it knows, the clients it serves, and what it has counted."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from llmgwd.gateway.ledger import Ledger
from llmgwd.gateway.lines import Lines
from llmgwd.gateway.loads import Loads
from llmgwd.gateway.routing import Splits, finishing
from llmgwd.gateway.settings import Settings
from llmgwd.gateway.table import Replica, Table
from llmgwd.gateway.upstream import Pool
from llmgwd.protocol.link import ReplicaRoute, Routes

if TYPE_CHECKING:
    from llmgwd.gateway.client import ClientConnection

_log = logging.getLogger("llmgwd.gateway")

SWEEP_S = 0.25
"""How often deadlines are looked at; they are that coarse, and cost nothing a request."""


class Gateway:
    """The owner of everything that requests share. Lives on one event loop."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        self.loop = loop
        self.table: Table | None = None
        self.splits = Splits(settings.worker_id)
        self.ledger = Ledger()
        self.loads = Loads()
        self.lines = Lines(settings.queue, max(settings.queue_bytes, settings.max_body_bytes))
        self.clients: set[ClientConnection] = set()
        self.excess: set[ClientConnection] = set()
        """Connections over the limit, each until it has read that it is one."""
        self.is_finishing = False
        self.closes_idle = False
        """While it finishes: whether a connection without a request is closed, or may bring one more."""
        self.drained: Callable[[], None] = lambda: None
        """Called when a replica that left the table has no request left."""
        self.emptied: Callable[[], None] = lambda: None
        """Called when the last client connection is gone."""
        self._fleet: dict[ReplicaRoute, Replica] = {}
        self._left: set[Replica] = set()
        """Replicas that left the table and whose last request no report has told of yet."""

    def apply(self, routes: Routes) -> None:
        """Replaces the table. From here on no request is sent by an older one: see `Exchange`."""
        table = Table(routes, self._replica)
        self.table = table
        self.ledger.looks.keep_only(table.canaries)
        drained = False
        for route, replica in list(self._fleet.items()):
            if replica in table.replicas:
                self._left.discard(replica)
                continue
            replica.pool.close()
            if replica not in self._left:
                self._left.add(replica)
                drained |= replica.in_flight == 0
            if replica.in_flight == 0:
                del self._fleet[route]
        for waiting in self.lines.dissolve():
            waiting.rechoose()
        if drained:
            self.drained()

    def take(self, replica: Replica) -> None:
        replica.book_load(time.monotonic())
        replica.in_flight += 1

    def leave(self, replica: Replica) -> None:
        """The other half of `take`."""
        replica.book_load(time.monotonic())
        replica.in_flight -= 1
        if self.lines.count and self.table is not None:
            for arm in self.table.arms_of.get(replica, ()):
                self.lines.call(arm.line)
        if replica.in_flight == 0 and replica in self._left:
            self._fleet = {route: kept for route, kept in self._fleet.items() if kept is not replica}
            self.drained()

    def in_flight(self) -> dict[str, int]:
        """Requests by replica id: those in the table, and those that left it until their zero was told once."""
        counts: dict[str, int] = {}
        for replica in (self.table.replicas if self.table is not None else frozenset()) | self._left:
            counts[replica.id] = counts.get(replica.id, 0) + replica.in_flight
        return counts

    def take_heard(self) -> tuple[str, ...]:
        """The ids of the replicas that were heard of since this was last asked."""
        heard = [replica for replica in self._fleet.values() if replica.heard]
        for replica in heard:
            replica.heard = False
        return tuple(replica.id for replica in heard)

    @property
    def has_heard(self) -> bool:
        return any(replica.heard for replica in self._fleet.values())

    @property
    def has_drained(self) -> bool:
        """Whether a replica's last request ended since it left the table, and no report has told of it."""
        return any(replica.in_flight == 0 for replica in self._left)

    def forget_drained(self) -> None:
        """The present zeros are told."""
        self._left = {replica for replica in self._left if replica.in_flight}

    def sweep(self) -> None:
        """Ends what is past its deadline, and books the loads."""
        now = self.loop.time()
        for client in (*self.clients, *self.excess):
            try:
                client.check(now)
            except Exception:  # noqa: BLE001
                # One that cannot be looked at must not take everybody's deadlines with it.
                _log.exception("a connection could not be checked and is cut")
                client.abort()
        idle_before = now - self.settings.upstream_idle_s
        for replica in self._fleet.values():
            replica.pool.expire(idle_before)
        if self.table is not None:
            self.loads.measure(self.table)

    def finish(self, *, closes_idle: bool = True) -> None:
        """From now on connections close with their present request; idle ones soon, or with their next."""
        self.is_finishing = True
        self.closes_idle = closes_idle
        for client in list(self.clients) if closes_idle else ():
            client.finish()

    def turn_away(self) -> None:
        """Answers the requests that still wait for a replica."""
        for waiting in self.lines.dissolve():
            waiting.turn_away(finishing())

    def abort(self) -> None:
        """Cuts what is still there."""
        for client in list(self.clients):
            client.abort_unless_closing()

    def _replica(self, route: ReplicaRoute) -> Replica:
        replica = self._fleet.get(route)
        if replica is None:
            limit = self.settings.upstream_idle_connections
            pool = Pool(route.host, route.port, limit, self.loop, tls=route.tls)
            replica = self._fleet[route] = Replica(route, pool)
        replica.pool.is_closed = False
        return replica
