"""The daemon's side of the link, as far as a worker can tell: routes out, reports in and acknowledged."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from llmgwd.domain.samples import merged
from llmgwd.protocol.framing import FrameReader, frame
from llmgwd.protocol.link import (
    FromWorker,
    LineLength,
    Report,
    ReportTaken,
    Routes,
    RoutesApplied,
    ToWorker,
    WorkerHello,
)
from llmgwd.protocol.samples import Arm, ArmSample

DEADLINE_S = 10.0


class Daemon:
    """Listens on a link socket, keeps the latest routes for whoever connects, and adds up what is reported."""

    def __init__(self, path: Path, *, acknowledges: bool = True) -> None:
        self.path = path
        self.acknowledges = acknowledges
        self.cuts_reports = False
        """Ends the link instead of taking a report."""
        self.routes: Routes | None = None
        self.hellos: list[WorkerHello] = []
        self.applied: list[int] = []
        self.reports: list[Report] = []
        self._changed = threading.Condition()
        self._peer: socket.socket | None = None
        self._listener: socket.socket | None = None
        self.start()

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(8)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """Goes away, as a crash would."""
        for sock in (self._listener, self._peer):
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()
        self._listener = self._peer = None
        self.path.unlink(missing_ok=True)

    def send(self, message: ToWorker) -> None:
        assert self._peer is not None
        self._peer.sendall(frame(msgspec.msgpack.encode(message)))

    def publish(self, routes: Routes) -> None:
        """Pushes a table and returns once it is acknowledged."""
        self.routes = routes
        if self._peer is not None:
            self.send(routes)
        self.wait(lambda: routes.version in self.applied, f"routes {routes.version} applied")

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
        end = time.monotonic() + timeout_s
        with self._changed:
            while not condition():
                left = end - time.monotonic()
                assert left > 0, f"not within {timeout_s} s: {what}; reports: {self.reports[-3:]}"
                self._changed.wait(min(left, 0.2))

    def distinct(self) -> list[Report]:
        """Each report once, as a daemon that has seen the number before would count it."""
        return list({(report.seq): report for report in self.reports}.values())

    def sample(self, model: str, arm: Arm = Arm.STABLE, *, apart: bool = False) -> ArmSample:
        """Everything reported of one arm, over all revisions and canaries, added up."""
        total = ArmSample(model, arm, "", apart=apart)
        for report in self.distinct():
            for each in report.samples:
                if (each.model, each.arm, each.apart) == (model, arm, apart):
                    named = msgspec.structs.replace(total, revision=each.revision, canary=each.canary)
                    total = merged(named, each)
        return total

    def total(self, model: str) -> int:
        """Requests of a model that have been reported, forced ones too."""
        samples = [self.sample(model, arm) for arm in Arm]
        return sum(sum(sample.outcomes.values()) + sample.forced for sample in samples)

    def await_total(self, model: str, count: int) -> None:
        self.wait(lambda: self.total(model) >= count, f"{count} requests of {model} reported")

    @property
    def lines(self) -> tuple[LineLength, ...]:
        """As the last report has them."""
        return self.reports[-1].lines if self.reports else ()

    def in_flight(self, replica: str) -> int | None:
        """As the last report has it."""
        return self.reports[-1].in_flight.get(replica) if self.reports else None

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                self._peer = peer
                if self.routes is not None:
                    self.send(self.routes)
                self._read(peer)

    def _read(self, peer: socket.socket) -> None:
        frames = FrameReader()
        decode = msgspec.msgpack.Decoder(FromWorker).decode
        with contextlib.suppress(OSError):
            while data := peer.recv(65536):
                for payload in frames.feed(data):
                    self._hear(peer, decode(payload))

    def _hear(self, peer: socket.socket, message: FromWorker) -> None:
        with self._changed:
            match message:
                case WorkerHello():
                    self.hellos.append(message)
                case RoutesApplied(version):
                    self.applied.append(version)
                case Report(seq):
                    self.reports.append(message)
                    if self.cuts_reports:
                        peer.shutdown(socket.SHUT_RDWR)
                        return
                    if self.acknowledges:
                        peer.sendall(frame(msgspec.msgpack.encode(ReportTaken(seq))))
            self._changed.notify_all()
