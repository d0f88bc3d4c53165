"""The daemon's end of the link to its gateway workers: routes out and acknowledged, samples in exactly once."""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc
import msgspec

from llmgwd.dataplane.totals import Totals
from llmgwd.protocol.framing import FrameError, FrameReader, frame
from llmgwd.protocol.link import (
    LINK_VERSION,
    ArmRoute,
    Finish,
    FromWorker,
    LineLength,
    ModelRoute,
    Report,
    ReportTaken,
    Routes,
    RoutesApplied,
    ToWorker,
    WorkerHello,
)
from llmgwd.protocol.samples import Arm

log = logging.getLogger(__name__)

SEND_WITHIN_S = 5.0

_decode = msgspec.msgpack.Decoder(FromWorker).decode
_encode = msgspec.msgpack.encode


@dataclass(eq=False)
class Worker:
    """One connected worker, as it last said it was."""

    name: str
    pid: int
    stream: anyio.abc.SocketStream
    applied: int = 0
    """Version of the table that every new request of it follows."""
    in_flight: dict[str, int] = field(default_factory=dict)
    """Requests per replica id, counted when it applied that table or later."""
    lines: tuple[LineLength, ...] = ()
    writing: anyio.Lock = field(default_factory=anyio.Lock)

    async def send(self, message: ToWorker) -> None:
        async with self.writing:
            await self.stream.send(frame(_encode(message)))


@dataclass
class Load:
    """What one arm of a model has to do now, over all workers."""

    in_flight: int = 0
    waiting: int = 0


class Link:
    """Owns the link socket. `take` and `totals` get each sample once, however often a worker sends it."""

    def __init__(self, path: Path, take: Callable[[Report], None], totals: Totals) -> None:
        self._path = path
        self._take = take
        self._totals = totals
        self._workers: set[Worker] = set()
        self._routes = Routes(version=0)
        self._places: dict[str, tuple[str, Arm]] = {}
        """Model and arm of each replica in the table, and of those that left it while they had requests."""
        self._last_seq: dict[str, int] = {}
        self._greeted: set[int] = set()
        """Pids of all that ever said hello, and so may follow a table of ours."""
        self._changed = anyio.Event()

    @property
    def workers(self) -> list[Worker]:
        return list(self._workers)

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Listens until cancelled."""
        self._path.unlink(missing_ok=True)
        listener = await anyio.create_unix_listener(self._path, mode=0o600)
        async with listener:
            task_status.started()
            await listener.serve(self._talk)

    async def push(self, routes: Routes) -> None:
        """Makes this the table, for the workers there are and those that come. `applied` tells when it holds."""
        self._routes = routes
        self._totals.follow(routes)
        left = {replica: place for replica, place in self._places.items() if self._in_flight(replica)}
        self._places = {**left, **_places(routes)}
        for worker in self.workers:
            await self._send(worker, routes)

    async def applied(self, version: int, running: Callable[[], Collection[int]], within_s: float) -> set[int]:
        """Waits until every running worker that ever had routes follows this table.

        `running` gives the pids of worker processes. Returns those that still do not follow it after `within_s`, one
        whose link is down among them: it serves by the table it has.
        """
        with anyio.move_on_after(within_s):
            while self._behind(version, running()):
                await self._next_change()
        return self._behind(version, running())

    async def drained(self, replica: str, version: int, within_s: float) -> int:
        """Waits until no worker has a request on this replica, which no table since `version` names.

        Returns how many are left after `within_s`.
        """
        with anyio.move_on_after(within_s):
            while self._in_flight(replica) or any(worker.applied < version for worker in self._workers):
                await self._next_change()
        return self._in_flight(replica)

    async def connected(self, count: int) -> None:
        """Waits until that many workers follow the present table."""
        while sum(worker.applied >= self._routes.version for worker in self._workers) < count:
            await self._next_change()

    def load(self) -> dict[tuple[str, Arm], Load]:
        """What each arm has to do, as last reported; those in the table are there with zeros too."""
        loads = {(model.name, arm): Load() for model in self._routes.models for arm in _arms(model)}
        for worker in self._workers:
            for replica, count in worker.in_flight.items():
                place = self._places.get(replica)
                if place is not None and (count or place in loads):
                    loads.setdefault(place, Load()).in_flight += count
            for line in worker.lines:
                loads.setdefault((line.model, line.arm), Load()).waiting += line.waiting
        return loads

    async def finish(self, drain_s: float) -> None:
        """Tells every worker to finish what it has and exit."""
        for worker in self.workers:
            await self._send(worker, Finish(float(drain_s)))

    def _behind(self, version: int, running: Collection[int]) -> set[int]:
        following = {worker.pid for worker in self._workers if worker.applied >= version}
        connected = {worker.pid for worker in self._workers}
        return ((self._greeted & set(running)) | connected) - following

    def _in_flight(self, replica: str) -> int:
        return sum(worker.in_flight.get(replica, 0) for worker in self._workers)

    async def _next_change(self) -> None:
        await self._changed.wait()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _send(self, worker: Worker, message: ToWorker) -> None:
        try:
            # Half a frame would end the conversation: a caller's cancellation waits for the other half.
            with anyio.fail_after(SEND_WITHIN_S, shield=True):
                await worker.send(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, TimeoutError):
            # Its reader sees the end of the connection and forgets it.
            await worker.stream.aclose()

    async def _talk(self, stream: anyio.abc.SocketStream) -> None:
        reader = FrameReader()
        worker: Worker | None = None
        try:
            async with stream:
                async for data in stream:
                    for payload in reader.feed(data):
                        worker = await self._receive(stream, worker, _decode(payload))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        except (FrameError, msgspec.ValidationError, msgspec.DecodeError) as error:
            log.error("a gateway worker does not speak the link protocol: %s", error)
        finally:
            if worker is not None:
                self._workers.discard(worker)
                self._announce()

    async def _receive(
        self, stream: anyio.abc.SocketStream, worker: Worker | None, message: FromWorker
    ) -> Worker | None:
        if isinstance(message, WorkerHello):
            if message.version != LINK_VERSION:
                raise FrameError(f"it speaks version {message.version}, this daemon {LINK_VERSION}")
            worker = Worker(message.worker, message.pid, stream)
            self._workers.add(worker)
            self._greeted.add(worker.pid)
            await self._send(worker, self._routes)
        elif worker is None:
            raise FrameError("it did not say hello first")
        elif isinstance(message, RoutesApplied):
            worker.applied = max(worker.applied, message.version)
            worker.in_flight = message.in_flight
        else:
            await self._take_report(worker, message)
        self._announce()
        return worker

    async def _take_report(self, worker: Worker, report: Report) -> None:
        worker.in_flight = report.in_flight
        worker.lines = report.lines
        if report.seq > self._last_seq.get(worker.name, 0):
            self._last_seq[worker.name] = report.seq
            self._take(report)
            self._totals.add(report.samples)
        await self._send(worker, ReportTaken(report.seq))


def _arms(model: ModelRoute) -> dict[Arm, ArmRoute]:
    stable = {Arm.STABLE: model.stable}
    return stable if model.canary is None else {**stable, Arm.CANARY: model.canary.arm}


def _places(routes: Routes) -> dict[str, tuple[str, Arm]]:
    return {
        replica.id: (model.name, arm)
        for model in routes.models
        for arm, route in _arms(model).items()
        for replica in route.replicas
    }
