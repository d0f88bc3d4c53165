"""A client on a raw socket, so that tests see every byte."""

import json
import socket
from dataclasses import dataclass
from typing import Any

from tests.support.house import wait_until

DEADLINE_S = 10.0


def wait_listening(port: int) -> None:
    wait_until(lambda: _listens(port), DEADLINE_S, f"something listens on {port}")


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@dataclass
class Reply:
    """One reply as it came; `whole` is whether its framing was complete."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool = True

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The error's code, checked to be in OpenAI's shape."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return str(error["code"])


class Client:
    """One connection to the gateway."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(("127.0.0.1", port))
        self.buffer = b""

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, path: str, body: Any = None, *headers: str, method: str | None = None) -> Reply:
        self.send(request(path, body, *headers, method=method))
        return self.read(head_only=method == "HEAD")

    def read(self, *, head_only: bool = False) -> Reply:
        head = self.read_until(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ")[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if head_only or status in (204, 304) or status < 200:
            return Reply(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Reply(status, headers, *self._chunks())
        if "content-length" in headers:
            return Reply(status, headers, *self._exactly(int(headers["content-length"])))
        return Reply(status, headers, self.read_rest())

    def read_until(self, mark: bytes) -> bytes:
        while mark not in self.buffer:
            assert self._more(), f"closed before {mark!r}; had {self.buffer!r}"
        found, _, self.buffer = self.buffer.partition(mark)
        return found

    def read_rest(self) -> bytes:
        """Everything until the gateway closes."""
        while self._more():
            pass
        rest, self.buffer = self.buffer, b""
        return rest

    def is_closed(self) -> bool:
        """Whether the gateway closes without another byte (within the deadline)."""
        return not self.buffer and not self._more()

    def _exactly(self, size: int) -> tuple[bytes, bool]:
        while len(self.buffer) < size:
            if not self._more():
                rest, self.buffer = self.buffer, b""
                return rest, False
        body, self.buffer = self.buffer[:size], self.buffer[size:]
        return body, True

    def _chunks(self) -> tuple[bytes, bool]:
        body = b""
        while True:
            while b"\r\n" not in self.buffer:
                if not self._more():
                    return body, False
            line, _, self.buffer = self.buffer.partition(b"\r\n")
            size = int(line, 16)
            piece, whole = self._exactly(size + 2)
            body += piece[:size]
            if not whole or size == 0:
                return body, whole

    def _more(self) -> bool:
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            return False
        self.buffer += data
        return bool(data)


def request(path: str, body: Any = None, *headers: str, method: str | None = None) -> bytes:
    """The bytes of a request; a body that is not bytes is sent as JSON."""
    if body is None:
        lines = [f"{method or 'GET'} {path} HTTP/1.1", "Host: gateway", *headers]
        return "\r\n".join(lines).encode() + b"\r\n\r\n"
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method or 'POST'} {path} HTTP/1.1", "Host: gateway", f"Content-Length: {len(payload)}"]
    if not any(header.lower().startswith("content-type") for header in headers):
        lines.append("Content-Type: application/json")
    return "\r\n".join([*lines, *headers]).encode() + b"\r\n\r\n" + payload


def ask(port: int, path: str, body: Any = None, *headers: str, method: str | None = None) -> Reply:
    """One request on a connection of its own."""
    with Client(port) as client:
        return client.ask(path, body, *headers, method=method)
