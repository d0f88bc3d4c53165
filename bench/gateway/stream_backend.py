"""The streaming backend: an engine's HTTP face that sends 100 tokens 20 ms apart.

One timer turns a wheel of 1 ms slots for all streams, so that a thousand of them cost few wake-ups.
"""

import argparse
import asyncio
import re
import socket
import time
from typing import cast

import uvloop

CHUNKS = 100
GAP_S = 0.02
MARK = b"~"
"""Once in every content chunk and nowhere else: the client counts chunks by it, however the bytes are cut."""

COMPLETION = (
    b'{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"bench","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"A short answer of a dozen words that nobody needs to read twice."},'
    b'"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":14,"total_tokens":26}}'
)
_EVENT = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[%b]%b}\n\n'
)
_LISTENERS = 16
_TICKS_PER_S = 1000
_SLOTS = round(GAP_S * _TICKS_PER_S)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_STREAM = re.compile(rb'"stream": *true')
_USAGE = re.compile(rb'"include_usage": *true')


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _content(number: int) -> bytes:
    role = b'"role":"assistant",' if number == 0 else b""
    choice = b'{"index":0,"delta":{%b"content":" %b%d"},"logprobs":null,"finish_reason":null}' % (role, MARK, number)
    return _framed(_EVENT % (choice, b""))


_TOKENS = [_content(number) for number in range(CHUNKS)]
_FINISH = _framed(_EVENT % (b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}', b""))
_USAGE_CHUNK = _framed(
    _EVENT % (b"", b',"usage":{"prompt_tokens":12,"completion_tokens":%d,"total_tokens":%d}' % (CHUNKS, CHUNKS + 12))
)
_END = _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(COMPLETION),
    COMPLETION,
)


class Wheel:
    """Every stream sits in the slot of the millisecond it began in, and is served once a turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: list[list[Connection]] = [[] for _ in range(_SLOTS)]
        self._started_at = time.monotonic()
        self._tick = 0

    def add(self, connection: "Connection") -> None:
        self._slots[self._tick % _SLOTS].append(connection)

    def turn(self) -> None:
        """Serves the slots that are due, up to half a turn of them."""
        due = int((time.monotonic() - self._started_at) * _TICKS_PER_S)
        excess = due - self._tick - _SLOTS // 2
        if excess > 0:
            # Without a core to itself the wheel turns slower: catching up would starve whoever connects now.
            self._started_at += excess / _TICKS_PER_S
            due -= excess
        while self._tick < due:
            self._tick += 1
            slot = self._tick % _SLOTS
            if self._slots[slot]:
                self._slots[slot] = [connection for connection in self._slots[slot] if connection.advance()]
        self._loop.call_later(1 / _TICKS_PER_S, self.turn)


class Connection(asyncio.Protocol):
    """One keep-alive connection; requests on it come one after the other."""

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._sent = 0
        self._counts_usage = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer = self._buffer + data
        head_end = buffer.find(b"\r\n\r\n") + 4
        if head_end < 4:
            return
        length = _LENGTH.search(buffer, 0, head_end)
        end = head_end + (int(length[1]) if length else 0)
        if len(buffer) >= end:
            self._buffer = buffer[end:]
            self._answer(buffer[head_end:end])

    def advance(self) -> bool:
        """Sends the next token, or after the last one the end; whether there is more to come."""
        transport = self._transport
        if transport is None:
            return False
        if self._sent < CHUNKS:
            transport.write(_TOKENS[self._sent])
            self._sent += 1
            return True
        transport.write(_FINISH + (_USAGE_CHUNK if self._counts_usage else b"") + _END)
        return False

    def _answer(self, body: bytes) -> None:
        assert self._transport is not None
        if _STREAM.search(body) is None:
            self._transport.write(_WHOLE)
            return
        self._counts_usage = _USAGE.search(body) is not None
        self._transport.write(_STREAM_HEAD + _TOKENS[0])
        self._sent = 1
        self._wheel.add(self)


async def serve(port: int) -> None:
    """Serves on 127.0.0.1 until it is ended."""
    loop = asyncio.get_running_loop()
    wheel = Wheel(loop)
    wheel.turn()
    with socket.create_server(("127.0.0.1", port), backlog=4096) as listener:
        listener.setblocking(False)
        # uvloop accepts one connection a turn of its loop from each listener: one alone would make a crowd wait.
        servers = [
            await loop.create_server(lambda: Connection(wheel), sock=listener.dup(), backlog=4096)
            for _ in range(_LISTENERS)
        ]
        await servers[0].serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))
