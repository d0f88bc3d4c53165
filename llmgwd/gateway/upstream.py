"""Connections to the engines: one request at a time each, replies read by httptools, idle ones kept for the next."""

import asyncio
import select
import socket
import ssl
from collections import deque
from functools import cache
from typing import Protocol, cast

import httptools

from llmgwd.gateway.last_head import LastHead
from llmgwd.gateway.reply_heads import BODILESS, ReplyHead

MAX_REPLY_HEAD_BYTES = 64 * 1024


class Receiver(Protocol):
    """Who sent the request and takes the reply. After `reply_ended` or `reply_lost` nothing more comes."""

    def reply_came(self, connection: "UpstreamConnection", data: bytes, complete: bool) -> None:
        """The head is read, and this much more of the body came with it or after it."""

    def reply_lost(self, connection: "UpstreamConnection", why: str, reset: bool) -> None:
        """No whole reply will come; `why` is for people, `reset` tells a violent end from an early one."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to a replica. Its owner is the receiver while it has one, else the pool."""

    __slots__ = (
        "_body",
        "_chunk_is_whole",
        "_complete",
        "_head_bytes",
        "_head_request",
        "_headers",
        "_is_diverted",
        "_keeps_alive",
        "_parser",
        "_paused",
        "_poll",
        "_pool",
        "_receiver",
        "_transport",
        "content_length",
        "date_line",
        "head",
        "heard",
        "idle_since",
        "is_between_chunks",
        "is_used",
        "until_close",
    )

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._paused = False
        self._poll: select.poll | None = None
        self._is_diverted = False
        self.is_used = False
        """Whether it served a request before the present one: only then may its death be mere age."""
        self.idle_since = 0.0
        self._reset_reply(False)

    def _reset_reply(self, head_request: bool) -> None:
        self._head_request = head_request
        self._head_bytes = 0
        self._complete = False
        self._keeps_alive = False
        self.heard = False
        """Whether any byte of the reply came."""
        self._headers: list[tuple[bytes, bytes]] = []
        self.head: ReplyHead | None = None
        self.date_line = b""
        self.content_length: int | None = None
        self.until_close = False
        """Whether only the end of the connection ends the reply."""
        self._chunk_is_whole = False
        self.is_between_chunks = False
        """Whether the parser stands at the beginning of a chunk, so that it need not see a whole one."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_silent(self) -> bool:
        """Whether it is open and nothing waits on it to be read: an end that the loop has not come to yet does."""
        return self.is_open and (self._poll is None or not self._poll.poll(0))

    def send(self, head: bytes, body: bytes, receiver: Receiver, *, head_request: bool) -> None:
        """Writes a request; what becomes of it is told to the receiver, never before this returns."""
        assert self._transport is not None
        assert self._receiver is None
        self._reset_reply(head_request)
        self._receiver = receiver
        if len(body) < 65536:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def release(self) -> None:
        """The receiver is done with a complete reply: back to the pool, or closed if it cannot be used again."""
        self._receiver = None
        self.resume()
        if self._is_diverted:
            self._divert_to(self)
        if self._keeps_alive and self._complete and self._is_quiet():
            self.is_used = True
            self._pool.put(self)
        else:
            self.close()

    def _is_quiet(self) -> bool:
        """Whether it is open and the request is out: an engine may answer without having heard all of it."""
        return self.is_open and self._transport is not None and not self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Ends it at once; the receiver hears no more."""
        self._receiver = None
        if self._transport is not None:
            self._transport.abort()

    def divert(self, lane: asyncio.Protocol) -> None:
        """Lets `lane` have all that comes until the reply's end; it hands on what it does not take."""
        self._divert_to(lane)

    def _divert_to(self, protocol: asyncio.Protocol) -> None:
        self._is_diverted = protocol is not self
        if self._transport is not None:
            self._transport.set_protocol(protocol)

    def pause(self) -> None:
        if not self._paused and self.is_open:
            assert self._transport is not None
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            if self.is_open:
                assert self._transport is not None
                self._transport.resume_reading()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None:
            # Bytes that no request asked for: nothing on this connection can be trusted any more.
            self.close()
            return
        is_first = not self.heard
        if is_first:
            self.heard = True
            if not self._head_request and (known := self._pool.last_head.known(data)) is not None:
                self.head, date_line, body = known
                self.date_line = date_line or self.head.date_line
                self._keeps_alive = self._complete = True
                receiver.reply_came(self, body, True)
                return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                self._lose(f"the reply is not HTTP: {error}", reset=False)
                return
            # The reply is whole; what follows it was asked for by nobody, and ends the connection.
            self._keeps_alive = False
        if self.head is None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_REPLY_HEAD_BYTES:
                self._lose(f"the reply's head is over {MAX_REPLY_HEAD_BYTES} bytes", reset=False)
            return
        pieces = self._body
        if len(pieces) == 1:
            body = pieces[0]
            pieces.clear()
        elif pieces:
            body = b"".join(pieces)
            pieces.clear()
        else:
            body = b""
        self.is_between_chunks = self._chunk_is_whole and data.endswith(b"\r\n")
        if is_first and self._complete and self._keeps_alive:
            self._learn(data, self.head)
        receiver.reply_came(self, body, self._complete)

    def _learn(self, data: bytes, head: ReplyHead) -> None:
        # Not the head of an interim reply that came before, and none whose length is of a body that is not sent.
        if head.status not in BODILESS and data.startswith(b"HTTP/1.1 %d" % head.status):
            self._pool.last_head.learn(data, head)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        # The parser holds this connection in turn: a ring that only a full collection would find.
        del self._parser
        self._pool.forget(self)
        receiver = self._receiver
        if receiver is None:
            return
        if self.head is not None and self.until_close and exc is None:
            self._complete = True
            self._receiver = None
            receiver.reply_came(self, b"", True)
        else:
            self._lose("the engine closed the connection" if exc is None else str(exc), reset=exc is not None)

    def _lose(self, why: str, *, reset: bool) -> None:
        receiver = self._receiver
        self.close()
        if receiver is not None:
            receiver.reply_lost(self, why, reset)

    # httptools' side

    def on_message_begin(self) -> None:
        if self._complete:
            # Something follows the whole reply, and the parser is in the middle of it.
            self._keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is None:
            self._headers.append((name, value))
            return
        # A trailer: it is not passed on, and not without end.
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_REPLY_HEAD_BYTES:
            raise ValueError("endless trailers")

    def on_headers_complete(self) -> None:
        if self._complete:
            raise ValueError("a second reply to one request")
        status = self._parser.get_status_code()
        if status < 100:
            raise ValueError(f"status {status}")
        if status < 200:
            # An interim reply; the one that counts is still to come.
            self._headers = []
            return
        head = self.head = ReplyHead(status, self._headers)
        self.content_length = head.content_length
        self.date_line = head.date_line
        self.until_close = not head.is_framed and not self._head_request and status not in BODILESS
        self._keeps_alive = head.is_framed and not self._head_request and self._parser.should_keep_alive()
        if self._head_request:
            # llhttp would wait for the body that the head announces.
            self._complete = True

    def on_body(self, data: bytes) -> None:
        if self._head_request:
            raise ValueError("a body in the reply to HEAD")
        self._body.append(data)

    def on_chunk_header(self) -> None:
        self._chunk_is_whole = False

    def on_chunk_complete(self) -> None:
        self._chunk_is_whole = True

    def on_message_complete(self) -> None:
        if self.head is not None:
            self._complete = True


class Pool:
    """The idle connections to one replica, the latest used on top."""

    __slots__ = ("_host", "_idle", "_limit", "_loop", "_port", "_tls", "is_closed", "last_head")

    def __init__(self, host: str, port: int, limit: int, loop: asyncio.AbstractEventLoop, *, tls: bool = False) -> None:
        self._host = host
        self._port = port
        self._limit = limit
        self._loop = loop
        self._tls = tls
        self._idle: deque[UpstreamConnection] = deque()
        self.last_head: LastHead[ReplyHead] = LastHead()
        self.is_closed = False

    def take(self) -> UpstreamConnection | None:
        """An idle connection, if one is still open.

        It is looked at once more: a request on one whose engine has just ended could not be sent to another.
        """
        while self._idle:
            connection = self._idle.pop()
            if connection.is_silent:
                return connection
            connection.close()
        return None

    def put(self, connection: UpstreamConnection) -> None:
        if self.is_closed:
            connection.close()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if len(self._idle) > self._limit:
            self._idle.popleft().close()

    def forget(self, connection: UpstreamConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def expire(self, before: float) -> None:
        """Closes what has been idle since before that time of the loop's clock."""
        while self._idle and self._idle[0].idle_since < before:
            self._idle.popleft().close()

    def close(self) -> None:
        """The replica left: nothing is kept any more. Connections in use end with their requests."""
        self.is_closed = True
        while self._idle:
            self._idle.popleft().close()

    async def connect(self) -> UpstreamConnection:
        """A new connection. Raises OSError when there is none to be had."""
        _, connection = await self._loop.create_connection(
            lambda: UpstreamConnection(self),
            self._host,
            self._port,
            proto=socket.IPPROTO_TCP,
            ssl=_trusted() if self._tls else None,
        )
        return connection


@cache
def _trusted() -> ssl.SSLContext:
    """The system's certificates, and those that SSL_CERT_FILE and SSL_CERT_DIR name."""
    return ssl.create_default_context()
