"""A raw peer on the control socket, which may say what no proper client would."""

import socket
from pathlib import Path
from typing import Any

import msgspec

from llmgwd.protocol import messages as m
from llmgwd.protocol.framing import FrameReader, frame


class Peer:
    """One connection; nothing is said that `say` was not asked to."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(10)
        self.socket.connect(str(path))
        self._reader = FrameReader()
        self._waiting: list[bytes] = []

    def say(self, message: object) -> None:
        self.socket.sendall(frame(msgspec.msgpack.encode(message)))

    def hear(self) -> Any:
        """The next message; None at the end of the connection."""
        while not self._waiting:
            data = self.socket.recv(65536)
            if not data:
                return None
            self._waiting += self._reader.feed(data)
        return msgspec.msgpack.decode(self._waiting.pop(0), type=m.Reply)
