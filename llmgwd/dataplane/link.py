"""The daemon's end of the link to its gateway workers: routes out and acknowledged, samples in exactly once."""

import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc
import msgspec

from llmgwd.dataplane.totals import Totals
from llmgwd.domain.errors import LlmgwError
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
    ToWorker,
    WorkerHello,
)
from llmgwd.protocol.samples import Arm

log = logging.getLogger(__name__)

SEND_WITHIN_S = 5.0
HELLO_BYTES = 65536
MOST_LISTENERS = 64

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
    follows: bool = True
    """False for one of another link version, which only hands in what it counted."""
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
    """Owns the link socket. `take` and `totals` get each sample once, however often a worker sends it.

    A report that tells of a canary is acknowledged by `acknowledge`, once what was taken is saved; others at once.

    `take_listeners` gets a worker's pid and the file descriptors of its listening sockets, which are its to close.
    """

    def __init__(
        self,
        path: Path,
        take: Callable[[Report], None],
        totals: Totals,
        take_listeners: Callable[[int, list[int]], None] | None = None,
    ) -> None:
        self._path = path
        self._take = take
        self._totals = totals
        self._take_listeners = take_listeners or _close_all
        self._workers: set[Worker] = set()
        self._routes: Routes | None = None
        """None until the first are pushed: a worker of an earlier life serves by those it has."""
        self._places: dict[str, tuple[str, Arm]] = {}
        """Model and arm of each replica in the table, and of those that left it while they had requests."""
        self._last_seq: dict[str, int] = {}
        self._greeted: set[int] = set()
        """Pids of all that ever said hello, and so may follow a table of ours or of an earlier life."""
        self._complaints: dict[str, str] = {}
        """By worker, what was last said of a report of its that was not taken; it comes again and again."""
        self._heard_at: dict[str, float] = {}
        self._changed = anyio.Event()
        self._scope: anyio.CancelScope | None = None
        """Of `serve`; None before it."""
        self._is_closed = False
        self._unsaved: dict[Worker, int] = {}
        """The last report of each that was taken and not acknowledged, since it is to be saved first."""

    @property
    def workers(self) -> list[Worker]:
        return list(self._workers)

    @property
    def last_reports(self) -> Mapping[str, int]:
        """By worker, the last report that was taken."""
        return self._last_seq

    def heard_at(self, replica: str) -> float:
        """When a worker last said that this replica answered or went on to, on the loop's clock."""
        return self._heard_at.get(replica, float("-inf"))

    def resume(self, worker: str, pid: int, last_report: int, *, follows: bool = True) -> None:
        """Expects a worker of an earlier life, whose samples up to that report are saved.

        `follows`: it speaks this version of the link, and so will follow routes.
        """
        if follows:
            self._greeted.add(pid)
        self._last_seq[worker] = last_report

    def forget(self, worker: str, pid: int) -> None:
        """That worker was seen to have ended."""
        self._last_seq.pop(worker, None)
        self._complaints.pop(worker, None)
        self._greeted.discard(pid)

    async def awaits_saving(self) -> None:
        """Waits until something was taken that is to be saved, then acknowledged."""
        while not self._unsaved:
            await self._next_change()

    async def acknowledge(self) -> None:
        """Tells workers that they need not keep what was taken until now."""
        unsaved, self._unsaved = self._unsaved, {}
        for worker, seq in unsaved.items():
            await self._send(worker, ReportTaken(seq))

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Listens until `close`."""
        self._path.unlink(missing_ok=True)
        listener = await anyio.create_unix_listener(self._path, mode=0o600)
        async with listener:
            with anyio.CancelScope() as self._scope:
                if self._is_closed:
                    self._scope.cancel()
                task_status.started()
                await listener.serve(self._talk)

    def close(self) -> None:
        """Hears and takes no more; workers serve on by the routes they have."""
        self._is_closed = True
        if self._scope is not None:
            self._scope.cancel()

    async def push(self, routes: Routes) -> None:
        """Makes this the table, for the workers there are and those that come. `applied` tells when it holds."""
        self._routes = routes
        self._totals.follow(routes)
        left = {replica: place for replica, place in self._places.items() if self._in_flight(replica)}
        self._places = {**left, **_places(routes)}
        self._heard_at = {replica: at for replica, at in self._heard_at.items() if replica in self._places}
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

    async def drained(self, replica: str, version: int, running: Callable[[], Collection[int]], within_s: float) -> int:
        """Waits until no worker has a request on this replica, which no table since `version` names.

        A running worker whose link is down may have some: `running` is as for `applied`. Returns how many are known
        to be left after `within_s`.
        """
        with anyio.move_on_after(within_s):
            while self._in_flight(replica) or self._behind(version, running()):
                await self._next_change()
        return self._in_flight(replica)

    async def connected(self, count: int, apart_from: Collection[int] = ()) -> None:
        """Waits until that many workers follow the present table, those of the pids `apart_from` not counted."""
        while self._following(apart_from) < count:
            await self._next_change()

    async def said_hello(self, pids: Collection[int]) -> None:
        """Waits until each of these workers is connected."""
        while not {worker.pid for worker in self._workers}.issuperset(pids):
            await self._next_change()

    def load(self) -> dict[tuple[str, Arm], Load]:
        """What each arm has to do, as last reported; those in the table are there with zeros too."""
        models = self._routes.models if self._routes is not None else ()
        loads = {(model.name, arm): Load() for model in models for arm in _arms(model)}
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

    async def finish_replaced(self, pid: int, drain_s: float) -> bool:
        """Tells one worker to finish while others listen in its place; False when it is not connected."""
        found = [worker for worker in self._workers if worker.pid == pid]
        for worker in found:
            await self._send(worker, Finish(float(drain_s), is_replaced=True))
        return bool(found)

    def _following(self, apart_from: Collection[int]) -> int:
        routes = self._routes
        if routes is None:
            return 0
        return sum(each.applied >= routes.version and each.pid not in apart_from for each in self._workers)

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
        assert isinstance(stream, anyio.abc.UNIXSocketStream)
        reader = FrameReader()
        worker: Worker | None = None
        listeners: list[int] = []
        try:
            async with stream:
                hello, listeners = await stream.receive_fds(HELLO_BYTES, MOST_LISTENERS)
                for payload in reader.feed(hello):
                    worker = await self._receive(stream, worker, _decode(payload), listeners)
                async for data in stream:
                    for payload in reader.feed(data):
                        worker = await self._receive(stream, worker, _decode(payload))
        except anyio.EndOfStream:
            pass
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        except (FrameError, msgspec.ValidationError, msgspec.DecodeError) as error:
            self._complain(worker, f"a gateway worker does not speak the link protocol: {error}")
        except LlmgwError as error:
            self._complain(worker, f"a gateway worker's report is not taken yet, it comes again why={error.message}")
        except Exception as error:  # noqa: BLE001 - it is logged, with where it came from
            # The worker connects anew and says it again; the daemon, and what it serves, goes on.
            self._complain(worker, f"a gateway worker was not understood: {error!r}", error)
        finally:
            _close_all(0, listeners)
            if worker is not None:
                self._workers.discard(worker)
                self._unsaved.pop(worker, None)
                self._announce()

    def _complain(self, worker: Worker | None, words: str, error: Exception | None = None) -> None:
        """Logs it once, until a report of that worker is taken."""
        name = worker.name if worker is not None else ""
        if self._complaints.get(name) != words:
            self._complaints[name] = words
            log.error("%s worker=%s", words, name or "-", exc_info=error)

    async def _receive(
        self,
        stream: anyio.abc.SocketStream,
        worker: Worker | None,
        message: FromWorker,
        listeners: list[int] | None = None,
    ) -> Worker | None:
        if isinstance(message, WorkerHello):
            if listeners:
                self._take_listeners(message.pid, listeners[:])
                listeners.clear()
            worker = Worker(message.worker, message.pid, stream, follows=message.version == LINK_VERSION)
            if worker.follows:
                await self._welcome(worker)
        elif worker is None:
            raise FrameError("it did not say hello first")
        elif isinstance(message, Report):
            await self._take_report(worker, message)
        elif worker.follows:
            worker.applied = max(worker.applied, message.version)
            worker.in_flight = message.in_flight
        self._announce()
        return worker

    async def _welcome(self, worker: Worker) -> None:
        self._workers.add(worker)
        self._greeted.add(worker.pid)
        if self._routes is not None:
            await self._send(worker, self._routes)

    async def _take_report(self, worker: Worker, report: Report) -> None:
        worker.in_flight = report.in_flight
        worker.lines = report.lines
        self._heard_at.update(dict.fromkeys(report.heard, anyio.current_time()))
        if report.seq > self._last_seq.get(worker.name, 0):
            self._take(report)
            # Only what was taken is not taken again.
            self._last_seq[worker.name] = report.seq
            self._totals.add(report.samples)
        self._complaints.pop(worker.name, None)
        if _is_saved(report):
            self._unsaved[worker] = report.seq
        else:
            await self._send(worker, ReportTaken(report.seq))


def _is_saved(report: Report) -> bool:
    """Whether it tells of a canary, and so must outlive the daemon."""
    return bool(report.looks or report.loads or any(sample.canary for sample in report.samples))


def _close_all(_: int, descriptors: list[int]) -> None:
    for each in descriptors:
        os.close(each)


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
