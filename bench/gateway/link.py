"""The daemon's end of the link as far as a gateway worker can tell: one model on one replica, and reports taken."""

import contextlib
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import msgspec

from llmgwd.protocol.framing import FrameReader, frame
from llmgwd.protocol.link import (
    ArmRoute,
    FromWorker,
    ModelRoute,
    ReplicaRoute,
    Report,
    ReportTaken,
    Routes,
    RoutesApplied,
    WorkerHello,
)

MODEL = "bench"
_APPLIED_TIMEOUT_S = 10.0
_decode = msgspec.msgpack.Decoder(FromWorker).decode


class StandIn:
    """Listens on a Unix socket, gives each worker the same routes, and adds up what all of them report.

    `outcomes`, `completion_tokens` and `first_token_samples` (entries of the time-to-first-token sketches) only grow.
    """

    def __init__(self, path: Path, upstream: int, served_name: str = MODEL) -> None:
        replica = ReplicaRoute(id="bench-0", host="127.0.0.1", port=upstream, served_name=served_name)
        stable = ArmRoute(revision="0" * 40, replicas=(replica,))
        self.path = path
        self.outcomes: Counter[str] = Counter()
        self.completion_tokens = 0
        self.first_token_samples = 0
        self._routes = frame(msgspec.msgpack.encode(Routes(1, (ModelRoute(MODEL, stable),))))
        self._applied: set[str] = set()
        self._changed = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def await_applied(self, workers: int) -> None:
        """Returns once that many workers acknowledged the routes. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._applied) >= workers, _APPLIED_TIMEOUT_S):
                raise TimeoutError(f"{len(self._applied)} of {workers} workers applied the routes")

    def close(self) -> None:
        """Stops listening; the workers are told nothing."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def settled(self) -> dict[str, int]:
        """Reported requests by outcome, after the time of two reports without news."""
        while True:
            before = dict(self.outcomes)
            time.sleep(1.2)
            if before == self.outcomes:
                return before

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        frames = FrameReader()
        worker = ""
        with contextlib.suppress(OSError), peer:
            peer.sendall(self._routes)
            while data := peer.recv(65536):
                for payload in frames.feed(data):
                    match _decode(payload):
                        case WorkerHello(name):
                            worker = name
                        case RoutesApplied():
                            with self._changed:
                                self._applied.add(worker)
                                self._changed.notify_all()
                        case Report() as report:
                            self._take(report)
                            peer.sendall(frame(msgspec.msgpack.encode(ReportTaken(report.seq))))

    def _take(self, report: Report) -> None:
        with self._changed:
            for sample in report.samples:
                self.outcomes.update({outcome.value: count for outcome, count in sample.outcomes.items()})
                self.completion_tokens += sample.completion_tokens
                self.first_token_samples += sum(sample.ttft.values())
