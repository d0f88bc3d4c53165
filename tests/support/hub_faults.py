"""What goes wrong on request in the local hub, and the record of what it was asked."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong with the requests it matches.

    path_glob is matched against the decoded path without its query (see `hub_replies` for the paths); `*` also
    matches `/`. Of the requests that match, the first `after` pass unharmed and the next `times` (None: all) are hit.
    Only the first fault in the order of addition hits a request; one fault can do several things at once. A fault of
    the body alone passes over what has no content: HEAD, redirects and errors.
    """

    path_glob: str = "*"
    method: str | None = None
    times: int | None = 1
    after: int = 0

    status: int | None = None
    """Answer with this status and with body, whatever was asked."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Added to the answer, or replacing its own."""
    body: bytes = b""

    drop: bool = False
    """Close the connection without an answer."""
    drop_after: int | None = None
    """Close the connection after this many bytes of a longer body."""
    reset: bool = False
    """Make drop and drop_after a TCP reset instead of an orderly close."""
    hang: bool = False
    """No answer at all until the faults are cleared or the hub closes; then the connection is closed."""
    hang_after: int | None = None
    """The same after this many bytes of a longer body."""
    flip_byte_at: int | None = None
    """Invert the byte at this offset of the file (of the body, for what is not a file)."""
    bytes_per_s: int | None = None

    @classmethod
    def rate_limited(cls, path_glob: str = "*", *, seconds: int = 3, times: int | None = 1) -> "Fault":
        """429 with the headers by which the hub says when to come back."""
        headers = {"RateLimit": f'"api";r=0;t={seconds}', "Retry-After": str(seconds)}
        return cls(path_glob, times=times, status=429, headers=headers, body=b'{"error":"Too Many Requests"}')

    @classmethod
    def html_page(cls, path_glob: str = "*", *, times: int | None = 1) -> "Fault":
        """A web page with status 200 in the place of the answer, as from a proxy's sign-in page."""
        page = b"<!doctype html><html><body>Please sign in to continue</body></html>"
        return cls(path_glob, times=times, status=200, headers={"Content-Type": "text/html"}, body=page)

    def hits(self, method: str, path: str, *, has_content: bool) -> bool:
        concerns_any = self.status is not None or self.drop or self.hang or bool(self.headers)
        return (concerns_any or has_content) and self.method in (None, method) and fnmatchcase(path, self.path_glob)


class Faults:
    """The faults waiting to happen. Safe to change while requests are served."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._released = threading.Event()

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._waiting.append(_Waiting(fault))

    def clear(self) -> None:
        """Forgets all faults and lets go of the requests that hang."""
        with self._lock:
            self._waiting.clear()
            self._released.set()
            self._released = threading.Event()

    def take(self, method: str, path: str, *, has_content: bool) -> tuple[Fault, threading.Event] | None:
        """The fault that hits this request, counted as used, and the event that ends its hanging."""
        with self._lock:
            for waiting in self._waiting:
                fault, turn = waiting.fault, waiting.matched - waiting.fault.after
                is_spent = fault.times is not None and turn >= fault.times
                if is_spent or not fault.hits(method, path, has_content=has_content):
                    continue
                waiting.matched += 1
                if turn >= 0:
                    return fault, self._released
        return None


@dataclass
class _Waiting:
    fault: Fault
    matched: int = 0


@dataclass(frozen=True)
class RequestRecord:
    """One request, recorded when its answer was decided and before the first byte of it was sent.

    path is decoded and without query; host is the Host header without port; body_bytes is how much body the answer
    has (0 for HEAD, and up to where a fault cuts it), though the client may have left before.
    """

    method: str
    path: str
    query: str
    host: str
    range: str | None
    had_token: bool
    status: int
    body_bytes: int
    accept_encoding: str = ""


class RequestLog:
    """All requests in the order of their answers."""

    def __init__(self) -> None:
        self._records: list[RequestRecord] = []
        self._changed = threading.Condition()

    def add(self, record: RequestRecord) -> None:
        with self._changed:
            self._records.append(record)
            self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self._records.clear()

    def matching(self, path_glob: str = "*", method: str | None = None) -> list[RequestRecord]:
        with self._changed:
            return self._matching(path_glob, method)

    def wait_for(
        self, path_glob: str = "*", method: str | None = None, *, count: int = 1, timeout_s: float = 10.0
    ) -> list[RequestRecord]:
        """The matching requests, once there are at least count. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._matching(path_glob, method)) >= count, timeout_s):
                raise TimeoutError(f"no {count} requests for {path_glob} within {timeout_s} s; had {self._records}")
            return self._matching(path_glob, method)

    def _matching(self, path_glob: str, method: str | None) -> list[RequestRecord]:
        return [r for r in self._records if method in (None, r.method) and fnmatchcase(r.path, path_glob)]
