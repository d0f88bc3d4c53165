"""A control server that says what a test wrote, on a real Unix socket and in real frames."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from llmgwd.protocol.framing import FrameReader, frame
from llmgwd.protocol.messages import PROTOCOL_VERSION, Failure, Hello, Reply, Request


class HangUp:
    """In an answer: the connection closes here."""


class Vanish:
    """In an answer: the connection and the listening socket close, as when the daemon is killed."""


Word = Reply | bytes | HangUp | Vanish
Script = Callable[[Request], Iterable[Word]]


class ScriptedDaemon:
    """Answers each request with the words its script yields for it; a script may wait between them.

    `requests` are those it was asked, in order. A word of bytes is the payload of a frame as it stands.
    """

    def __init__(self, path: Path, script: Script, version: int = PROTOCOL_VERSION) -> None:
        self.path = path
        self.requests: list[Request] = []
        self._script = script
        self._version = version
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._open: list[socket.socket] = [self._listening]

    def __enter__(self) -> Self:
        self._listening.bind(str(self.path))
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.vanish()

    def vanish(self) -> None:
        self.path.unlink(missing_ok=True)
        for opened in self._open:
            with contextlib.suppress(OSError):
                # Close alone would leave a thread in accept or recv, and the peer without an end of file.
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self._listening.accept()
                self._open.append(connected)
                threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        reader = FrameReader()
        hello_said = False
        with contextlib.suppress(OSError), connected:
            while data := connected.recv(65536):
                for payload in reader.feed(data):
                    if not hello_said:
                        msgspec.msgpack.decode(payload, type=Hello)
                        self._say(connected, Hello("llmgwd", self._version))
                        hello_said = True
                    elif not self._answer(connected, payload):
                        return

    def _answer(self, connected: socket.socket, payload: bytes) -> bool:
        """Whether the conversation goes on."""
        try:
            request: Request = msgspec.msgpack.decode(payload, type=Request)
        except msgspec.ValidationError as error:
            self._say(connected, Failure("unknown_request", f"llmgwd does not know this request: {error}"))
            return True
        self.requests.append(request)
        for word in self._script(request):
            if isinstance(word, HangUp):
                return False
            if isinstance(word, Vanish):
                self.vanish()
                return False
            self._say(connected, word)
        return True

    def _say(self, connected: socket.socket, word: Reply | bytes) -> None:
        connected.sendall(frame(word if isinstance(word, bytes) else msgspec.msgpack.encode(word)))
