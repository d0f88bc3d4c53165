"""A Hugging Face hub on this machine, for tests and trials: the real `huggingface_hub` client works against it.

    with LocalHub(folder) as hub:
        sha = hub.commit("org/repo", {"model.Q8_0.gguf": path, "README.md": "..."})
        HfApi(endpoint=hub.endpoint).model_info("org/repo", revision=sha)

`python -m tests.support.local_hub ROOT --port 0` serves such a folder until it is interrupted; its first line on
stdout is the endpoint. `hub_store` has the layout of the folder, `hub_replies` the paths and `hub_faults` the faults.
"""

import argparse
import io
import logging
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from types import TracebackType
from typing import Any, Literal, Self

from tests.support.hub_faults import Fault, Faults, RequestLog, RequestRecord
from tests.support.hub_replies import FileSlice, HubRequest, Reply, reply_to
from tests.support.hub_store import Access, Content, HubStore
from tests.support.hub_xet import HubXet

__all__ = ["Content", "Fault", "LocalHub", "RequestRecord"]

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20
PIECES_PER_S = 20  # a throttled body goes out in this many pieces a second


class LocalHub:
    """Serves ROOT on a loopback port while it is open; commits work before, while and after.

    Files of large_file_bytes or more, and all *.gguf and *.safetensors, are handled as large (LFS) files.
    `faults` is what goes wrong, `requests` what was asked. Opened again after `close`, it keeps its port.
    """

    def __init__(
        self, root: Path, *, port: int = 0, large_file_bytes: int = 10 << 20, tree_page_size: int = 1000
    ) -> None:
        self.store = HubStore(Path(root), large_file_bytes)
        self.faults = Faults()
        self.requests = RequestLog()
        self.tree_page_size = tree_page_size
        self._port = port
        self._server: _HubServer | None = None

    @property
    def endpoint(self) -> str:
        """The URL to give to the client. Raises RuntimeError before the first `start`."""
        if not self._port:
            raise RuntimeError("the hub has no endpoint before it is started")
        return f"http://127.0.0.1:{self._port}"

    def commit(
        self, repo: str, files: Mapping[str, Content | None], *, message: str = "Upload files", branch: str = "main"
    ) -> str:
        """Makes a new revision of ORG/NAME, which becomes its branch, and returns its sha; see `HubStore.commit`."""
        return self.store.commit(repo, files, message, branch)

    def set_ref(self, repo: str, name: str, sha: str) -> None:
        """Points a branch or tag at a revision: makes a tag, or moves main back."""
        self.store.set_ref(repo, name, sha)

    def require_token(self, repo: str, *tokens: str, kind: Literal["private", "gated"] = "private") -> None:
        """Lets only these bearer tokens in: a private repository is hidden from others, a gated one keeps its files."""
        self.store.set_access(repo, Access(kind, frozenset(tokens)))

    def offer_xet(self) -> None:
        """Offers all large files from xet storage as well, from now on."""
        self.store.xet = HubXet(self.store.root / "xet")

    def start(self) -> None:
        self._server = _HubServer(("127.0.0.1", self._port), self)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="local-hub", daemon=True).start()

    def close(self) -> None:
        """Stops listening and cuts all connections, also idle ones; ends all faults."""
        self.faults.clear()
        if self._server is not None:
            self._server.stop()
            self._server = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _HubServer(ThreadingTCPServer):
    """One thread a connection. Remembers the connections: a closed hub must not serve on over idle ones."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    server_address: tuple[str, int]

    def __init__(self, address: tuple[str, int], hub: LocalHub) -> None:
        super().__init__(address, _Handler)
        self.hub = hub
        self.stopping = threading.Event()
        self.resets: set[socket.socket] = set()
        self._connections: set[socket.socket] = set()

    def stop(self) -> None:
        self.stopping.set()
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):
            with suppress(OSError):  # it may be gone already
                connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        if request in self.resets:
            self.resets.discard(request)
            request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_request(request)  # without the orderly shutdown, which would send a FIN first
        else:
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that leaves is no error of the hub
            log.exception("local hub failed to answer")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _HubServer

    def do_GET(self) -> None:
        hub = self.server.hub
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        request = HubRequest(
            method=self.command,
            target=self.path,
            host=self.headers.get("Host", ""),
            byte_range=self.headers.get("Range"),
            token=token if kind.lower() == "bearer" else None,
            accept_encoding=self.headers.get("Accept-Encoding", ""),
        )
        reply = reply_to(hub.store, request, hub.tree_page_size)
        has_content = self.command == "GET" and reply.status in (200, 206)
        taken = hub.faults.take(request.method, request.path, has_content=has_content)
        fault, released = taken or (Fault(), None)
        if fault.status is not None:
            reply = Reply(fault.status, fault.headers, fault.body)
        reply = replace(reply, headers={**reply.headers, **fault.headers})
        hub.requests.add(_record(request, reply, fault))
        if fault.hang and released:
            released.wait()
        if fault.hang or fault.drop:
            self._cut(fault.reset)
        else:
            self._send(reply, fault, released)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send(self, reply: Reply, fault: Fault, released: threading.Event | None) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(_length(reply.body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if released is not None:
            self._send_faulty(reply.body, fault, released)
        elif isinstance(reply.body, bytes):
            self.wfile.write(reply.body)
        elif reply.body.length:
            with reply.body.path.open("rb") as file:
                self.connection.sendfile(file, reply.body.start, reply.body.length)

    def _send_faulty(self, body: bytes | FileSlice, fault: Fault, released: threading.Event) -> None:
        piece_bytes = max(fault.bytes_per_s // PIECES_PER_S, 1) if fault.bytes_per_s else PIECE_BYTES
        start = body.start if isinstance(body, FileSlice) else 0
        position, end, started = start, start + _length_sent(body, fault), time.monotonic()
        with body.path.open("rb") if isinstance(body, FileSlice) else io.BytesIO(body) as file:
            file.seek(start)
            while position < end:
                piece = bytearray(file.read(min(piece_bytes, end - position)))
                if fault.flip_byte_at is not None and position <= fault.flip_byte_at < position + len(piece):
                    piece[fault.flip_byte_at - position] ^= 0xFF
                position += len(piece)
                if fault.bytes_per_s:
                    due = started + (position - start) / fault.bytes_per_s
                    self.server.stopping.wait(due - time.monotonic())
                self.wfile.write(piece)
        if end - start < _length(body):
            if fault.hang_after is not None:
                released.wait()
            self._cut(fault.reset)

    def _cut(self, reset: bool) -> None:
        self.close_connection = True
        if reset:
            self.server.resets.add(self.connection)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        log.debug(format, *args)


def _length(body: bytes | FileSlice) -> int:
    return len(body) if isinstance(body, bytes) else body.length


def _length_sent(body: bytes | FileSlice, fault: Fault) -> int:
    stops = [stop for stop in (fault.drop_after, fault.hang_after) if stop is not None]
    return min([_length(body), *stops])


def _record(request: HubRequest, reply: Reply, fault: Fault) -> RequestRecord:
    has_body = request.method != "HEAD" and not (fault.hang or fault.drop)
    return RequestRecord(
        method=request.method,
        path=request.path,
        query=request.target.partition("?")[2],
        host=request.host.partition(":")[0],
        range=request.byte_range,
        had_token=request.token is not None,
        status=reply.status,
        body_bytes=_length_sent(reply.body, fault) if has_body else 0,
        accept_encoding=request.accept_encoding,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a folder of repositories as a Hugging Face hub.")
    parser.add_argument("root", type=Path)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    arguments = parser.parse_args()
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before the hub's threads start, which inherit it
    with LocalHub(arguments.root, port=arguments.port) as hub:
        print(hub.endpoint, flush=True)
        signal.sigwait(ends)


if __name__ == "__main__":
    main()
