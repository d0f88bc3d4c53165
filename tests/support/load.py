"""Clients that stream one answer after another through a house's gateway, and notice every one that is not whole."""

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.house import House, wait_until

ENOUGH = 20
"""Answers below which a load was none."""


class Problem(NamedTuple):
    """One answer that was not whole; times are of the monotonic clock."""

    began: float
    ended: float
    what: str


@dataclass
class Load:
    """Asks for the model `chat` in `clients` threads, each pausing `pause_s` at least between two requests."""

    house: House
    clients: int = 4
    pause_s: float = 0.0
    every_s: float = 0.0
    """From the beginning of a client's request to that of its next, unless the answer takes longer."""
    answered: int = 0
    arms: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    longest_s: float = 0.0
    """What the slowest whole answer took."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        for _ in range(self.clients):
            thread = threading.Thread(target=self._ask_on, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Lets each finish the answer it is reading."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask_on(self) -> None:
        body = json.dumps({"model": "chat", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        request = head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        while not self._stop.is_set():
            began = time.monotonic()
            problem, arm = self._ask(request)
            ended = time.monotonic()
            with self._lock:
                self.answered += 1
                self.arms[arm] += 1
                if problem:
                    self.problems.append(Problem(began, ended, problem))
                else:
                    self.longest_s = max(self.longest_s, ended - began)
            # A refused connection comes back at once: without a pause it would be counted a thousand times a second.
            pause_s = max(self.pause_s, began + self.every_s - ended, 0.05 if problem else 0.0)
            self._stop.wait(pause_s)

    def _ask(self, request: bytes) -> tuple[str, str]:
        data = b""
        try:
            with socket.create_connection(("127.0.0.1", self.house.gateway_port), timeout=20) as connection:
                connection.sendall(request)
                while piece := connection.recv(65536):
                    data += piece
        except OSError as error:
            return f"{error!r} after {data!r}", "none"
        arm = "canary" if b"x-llmgw-arm: canary" in data else "stable"
        head, _, rest = data.partition(b"\r\n\r\n")
        # A stream that was all there at once has a length instead of chunks.
        ended = rest.endswith(b"0\r\n\r\n") or b"Content-Length: %d" % len(rest) in head
        whole = head.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in rest and ended
        return ("" if whole else f"not whole: {data!r}"), arm


@contextmanager
def load_on(house: House, clients: int = 4) -> Iterator[Load]:
    """Every answer must be whole."""
    load = Load(house, clients)
    load.start()
    try:
        yield load
        # What was done meanwhile may have taken a moment only.
        wait_until(lambda: load.answered > ENOUGH or load.problems, what="clients are answered")
    finally:
        load.stop()
    assert load.problems == []
