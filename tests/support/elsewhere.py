"""A server that somebody else runs: the toy engine in this process, with TLS or a key when asked for."""

# ruff: noqa: N802 - the handler's methods are named by its base class

import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import socket
from typing import Any

from tests.support.house import free_port
from tests.support.toy_engine import Behaviour, Handler, ToyEngine


class _Theirs(Handler):
    """Notes what it is asked, and wants its key and its name."""

    server: "Elsewhere"

    def do_POST(self) -> None:
        body = self._body()
        self.server.asked.append((self.headers.get("authorization", ""), body.get("model", "")))
        if self.server.key and self.headers.get_all("authorization") != [f"Bearer {self.server.key}"]:
            self._json(401, {"error": {"message": f"no such key: {self.headers.get('authorization')}"}})
        elif body.get("model") != self.server.name:
            self._json(404, {"error": {"message": f"no model {body.get('model')}"}})
        else:
            self._answer(body)


class Elsewhere(ToyEngine):
    """`asked` has the Authorization and the model's name of each request."""

    def __init__(self, port: int, name: str, behaviour: Behaviour, key: str = "", tls: Path | None = None) -> None:
        super().__init__(("127.0.0.1", port), name, behaviour)
        self.RequestHandlerClass = _Theirs
        self.key = key
        self.asked: list[tuple[str, str]] = []
        self.scheme = "http" if tls is None else "https"
        self._open: set[Any] = set()
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls)
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def cut(self) -> None:
        """Ends every connection, as the end of a process does."""
        for each in self._open:
            with suppress(OSError):
                assert isinstance(each, socket)
                each.shutdown(2)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is nothing to tell of."""


@contextmanager
def elsewhere(
    behaviour: Behaviour | None = None,
    name: str = "chat",
    *,
    port: int = 0,
    key: str = "",
    tls: Path | None = None,
) -> Iterator[Elsewhere]:
    """One that serves until the end, on `port` or a free one."""
    server = Elsewhere(port or free_port(), name, behaviour or Behaviour(), key, tls)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        server.cut()


def certificate(folder: Path) -> Path:
    """A file with the key and the certificate of 127.0.0.1, which is its own authority."""
    path = folder / "tls.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=elsewhere", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", path, "-out", folder / "cert.pem"),
        ],
        check=True,
        capture_output=True,
    )
    path.write_text(path.read_text() + (folder / "cert.pem").read_text())
    return path
