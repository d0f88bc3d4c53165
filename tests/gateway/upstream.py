"""A small engine that speaks raw HTTP from a script, with every fault on request. One thread a connection."""

import contextlib
import json
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

DEADLINE_S = 10.0


@dataclass
class Request:
    """What arrived, head as sent."""

    raw_head: bytes
    body: bytes

    @property
    def line(self) -> str:
        return self.raw_head.split(b"\r\n")[0].decode()

    @property
    def headers(self) -> dict[str, str]:
        pairs = (line.partition(b":") for line in self.raw_head.split(b"\r\n")[1:] if line)
        return {name.decode().lower(): value.strip().decode("latin-1") for name, _, value in pairs}

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class GoneError(Exception):
    """The other side closed the connection."""


class Connection:
    """The engine's end of one connection, for the script to use."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.buffer = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reply(self, status: int, body: bytes, *headers: str, content_type: str = "application/json") -> None:
        lines = [f"HTTP/1.1 {status} X", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *headers]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def json(self, value: Any, status: int = 200) -> None:
        self.reply(status, json.dumps(value).encode())

    def start_stream(self) -> None:
        self.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        self.send(b"0\r\n\r\n")

    def stream_end(self, *events: bytes) -> None:
        for event in events:
            self.chunk(event)
        self.end_stream()

    def stream(self, *events: bytes) -> None:
        self.start_stream()
        for event in events:
            self.chunk(event)
        self.end_stream()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def wait_gone(self, timeout_s: float = DEADLINE_S) -> bool:
        """Whether the gateway closed its end within that time."""
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0:
            try:
                waiting = select.poll()
                waiting.register(self.socket, select.POLLIN)
                if waiting.poll(1000 * left) and not self.socket.recv(65536):
                    return True
            except (OSError, ValueError):
                # The latter: the script's own end was closed meanwhile.
                return True
        return False

    def read_request(self) -> Request:
        head = self._until(b"\r\n\r\n")
        request = Request(head, b"")
        length = int(request.headers.get("content-length", "0"))
        while len(self.buffer) < length:
            self._more()
        request.body, self.buffer = self.buffer[:length], self.buffer[length:]
        return request

    def _until(self, mark: bytes) -> bytes:
        while mark not in self.buffer:
            self._more()
        found, _, self.buffer = self.buffer.partition(mark)
        return found

    def _more(self) -> None:
        try:
            data = self.socket.recv(65536)
        except OSError as error:
            raise GoneError from error
        if not data:
            raise GoneError
        self.buffer += data


Script = Callable[[Connection, Request], None]


@dataclass(eq=False)
class Upstream:
    """Listens on a fresh port and runs the script for each request."""

    script: Script
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    _connections: list[Connection] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # shutdown wakes the accepting thread; close alone would leave it, and the port, as they are.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections += 1
                connection = Connection(sock)
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with contextlib.suppress(GoneError, OSError):
            while True:
                request = connection.read_request()
                self.requests.append(request)
                self.script(connection, request)
                if connection.socket.fileno() < 0:
                    return
