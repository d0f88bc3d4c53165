"""The side that clients connect to: requests cut out of the byte stream one after another, deadlines, flow control."""

import asyncio
import re
from collections.abc import Callable
from typing import cast

from llmgwd.gateway.admission import check_key
from llmgwd.gateway.answers import RefusedError, answer, error_json
from llmgwd.gateway.chunked import ChunkedBody, too_large
from llmgwd.gateway.exchange import Exchange
from llmgwd.gateway.heads import HeadParser, RequestHead, why_malformed
from llmgwd.gateway.last_head import LastHead
from llmgwd.gateway.state import Gateway

_HEADS = HeadParser(forwards_authorization=True)
"""For the time before the first table."""
_LINGER_S = 2.0
_MOST_EXCESS = 256
"""Connections over the limit that are answered at a time; any more are closed without a word."""
_NEVER = float("inf")
_CANNOT_BE_HEAD = re.compile(rb"(?<!\r)\n|\r[^\n]|\x00")


class ClientConnection(asyncio.Protocol):
    """One client's connection. It has at most one exchange at a time; what is pipelined waits in the buffer."""

    __slots__ = (
        "_body_begun_at",
        "_body_bytes",
        "_buffer",
        "_chunked",
        "_deadline",
        "_exchange",
        "_gateway",
        "_head",
        "_is_advancing",
        "_is_in_head",
        "_is_lingering",
        "_is_reading",
        "_last_head",
        "_last_parser",
        "_length",
        "_transport",
        "is_paused",
    )

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: RequestHead | None = None
        self._last_head: LastHead[RequestHead] = LastHead()
        self._last_parser: HeadParser | None = None
        """Who read the last head: another would make something else of it."""
        self._chunked: ChunkedBody | None = None
        self._exchange: Exchange | None = None
        self._length = 0
        self._body_begun_at: float | None = None
        self._body_bytes = 0
        self._deadline = _NEVER
        self._is_advancing = False
        self._is_in_head = False
        self._is_lingering = False
        self._is_reading = True
        self.is_paused = False
        """Whether the client reads slower than it is written to."""

    # the exchange's side

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    @property
    def writes(self) -> Callable[[bytes], None] | None:
        """What writes to this client with nothing in between; None when it is gone."""
        return self._transport.write if self._transport is not None else None

    def exchange_done(self, *, keep: bool) -> None:
        """The present exchange wrote all of its reply; the connection goes on with the next request or closes."""
        self._exchange = None
        transport = self._transport
        if transport is None:
            return
        if not keep:
            transport.close()
            return
        self._deadline = self._gateway.loop.time() + self._gateway.settings.idle_timeout_s
        if not self._is_reading:
            self._is_reading = True
            transport.resume_reading()
        if self._buffer:
            self._advance()
        elif self._gateway.closes_idle:
            transport.close()

    def refuse(self, refusal: RefusedError, head: RequestHead | None) -> bool:
        """Writes the error; whether the connection can be kept. `head` is None when it was not understood."""
        body = error_json(refusal.status, refusal.code, refusal.message, refusal.param)
        return self.answer(refusal.status, body, refusal.headers, None if refusal.closes else head)

    def answer(self, status: int, body: bytes, lines: bytes, head: RequestHead | None) -> bool:
        """Writes the gateway's own JSON reply; whether the connection can be kept."""
        close = self._gateway.is_finishing or head is None or not head.keep_alive
        self.write(
            answer(
                status,
                body,
                headers=lines,
                close=close,
                keep_alive_said=head is not None and head.minor == 0,
                without_body=head is not None and head.method == b"HEAD",
            )
        )
        return not close

    # the gateway's side

    def check(self, now: float) -> None:
        """Ends what is past its deadline at `now` of the loop's clock."""
        if self._exchange is not None:
            self._exchange.check(now)
        elif now >= self._deadline:
            self._time_out()

    def close_if_idle(self) -> None:
        if self._transport is not None and self._exchange is None and not self._buffer and self._head is None:
            self._transport.close()

    def abort(self) -> None:
        """Cuts it, unless it is closing already, with its last words still to be read."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        limit = self._gateway.settings.max_connections
        if len(self._gateway.clients) < limit:
            self._gateway.clients.add(self)
            self._deadline = self._gateway.loop.time() + self._gateway.settings.idle_timeout_s
        elif len(self._gateway.excess) < _MOST_EXCESS:
            self._gateway.excess.add(self)
            self._refuse_and_close(_too_many(limit))
        else:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._gateway.clients.discard(self)
        self._gateway.excess.discard(self)
        self._leave()
        if not self._gateway.clients:
            self._gateway.emptied()

    def eof_received(self) -> bool:
        if self._exchange is not None:
            # Half-closed or gone cannot be told apart; an engine must not work for nobody.
            self._leave()
            self.abort()
        return False

    def data_received(self, data: bytes) -> None:
        if self._is_lingering:
            return
        if self._exchange is None and not self._buffer and self._head is None and not self.is_paused:
            known = self._last_head.known(data)
            if known is not None and self._begin_whole(known[0], known[2]):
                return
        self._buffer += data
        self._body_bytes += len(data)
        if self._exchange is None:
            self._advance()
        elif len(self._buffer) > self._gateway.settings.max_body_bytes + self._gateway.settings.max_head_bytes:
            self._is_reading = False
            assert self._transport is not None
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self.is_paused = True
        if self._exchange is not None:
            self._exchange.client_paused()

    def resume_writing(self) -> None:
        self.is_paused = False
        if self._exchange is not None:
            self._exchange.client_resumed()
        elif self._buffer:
            self._advance()

    # requests

    def _leave(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_left()

    def _advance(self) -> None:
        """Starts the exchanges that the buffer holds, one after the other."""
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while self._exchange is None and self._buffer and not self.is_paused and self._is_open():
                if not self._next_request():
                    break
        except RefusedError as refusal:
            self._refuse_and_close(refusal)
        finally:
            self._is_advancing = False

    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and not self._is_lingering

    def _begin_whole(self, head: RequestHead, body: bytes) -> bool:
        """Starts a request that came whole and whose head is known; False when it must be looked at more closely."""
        table = self._gateway.table
        if table is None or table.heads is not self._last_parser or len(body) > self._gateway.settings.max_body_bytes:
            return False
        try:
            check_key(table, head)
        except RefusedError as refusal:
            self._refuse_and_close(refusal)
            return True
        self._begin(head, body)
        return True

    def _begin(self, head: RequestHead, body: bytes) -> None:
        self._deadline = _NEVER
        exchange = self._exchange = Exchange(self._gateway, self, head, body)
        exchange.start()

    def _next_request(self) -> bool:
        """Takes the next request off the buffer and starts it; False when it is not all there. Raises RefusedError."""
        head = self._head
        if head is None:
            head = self._take_head()
            if head is None:
                return False
        body = self._take_body()
        if body is None:
            self._head = head
            self._wait_for_body()
            return False
        self._head = self._chunked = self._body_begun_at = None
        self._begin(head, body)
        return True

    def _take_head(self) -> RequestHead | None:
        buffer = self._buffer
        # One empty line before a request is an old client's habit, which the standard asks to overlook.
        if buffer.startswith(b"\r\n"):
            del buffer[:2]
        limit = self._gateway.settings.max_head_bytes
        end = buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            self._wait_for_head(limit)
            return None
        if end > limit:
            raise _head_too_large(limit)
        self._is_in_head = False
        raw = bytes(buffer[:end])
        table = self._gateway.table
        parser = table.heads if table is not None else _HEADS
        head, self._length = parser.parse(raw)
        if not head.chunked and not head.expects_continue and len(buffer) == end + self._length:
            self._last_parser = parser
            self._last_head.learn(bytes(buffer), head)
        del buffer[:end]
        check_key(table, head)
        if self._length > self._gateway.settings.max_body_bytes:
            raise too_large(self._gateway.settings.max_body_bytes)
        if head.chunked:
            self._chunked = ChunkedBody(self._gateway.settings.max_body_bytes)
        if head.expects_continue and not buffer and (head.chunked or self._length):
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return head

    def _wait_for_head(self, limit: int) -> None:
        if len(self._buffer) > limit:
            raise _head_too_large(limit)
        if _CANNOT_BE_HEAD.search(self._buffer) is not None:
            raise why_malformed(bytes(self._buffer))
        if not self._is_in_head:
            # From the first byte on: a drip of bytes does not put it off.
            self._is_in_head = True
            self._deadline = self._gateway.loop.time() + self._gateway.settings.head_timeout_s

    def _wait_for_body(self) -> None:
        """Silence ends it, and so does a drip: in all it may take no longer than at the slowest pace allowed."""
        settings, now = self._gateway.settings, self._gateway.loop.time()
        if self._body_begun_at is None:
            self._body_begun_at = now
            self._body_bytes = 0
        paced = self._body_begun_at + settings.body_timeout_s + self._body_bytes / settings.body_rate
        self._deadline = min(now + settings.body_timeout_s, paced)

    def _take_body(self) -> bytes | None:
        if self._chunked is not None:
            return self._chunked.take(self._buffer)
        length = self._length
        if length == 0:
            return b""
        if len(self._buffer) < length:
            return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    def _refuse_and_close(self, refusal: RefusedError) -> None:
        """Answers what cannot be served, then reads on for a moment: closing on unread bytes would reset the answer."""
        refusal.closes = True
        self.refuse(refusal, self._head)
        self._head = self._chunked = self._body_begun_at = None
        self._buffer.clear()
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._is_lingering = True
            self._deadline = self._gateway.loop.time() + _LINGER_S
            transport.write_eof()

    def _time_out(self) -> None:
        if self._is_lingering or not (self._buffer or self._head is not None):
            self.abort()
            return
        what = "head" if self._head is None else "body"
        self._refuse_and_close(
            RefusedError(
                408, "request_timeout", f"the request's {what} did not arrive in time; send it again", closes=True
            )
        )


def _head_too_large(limit: int) -> RefusedError:
    return RefusedError(
        431, "head_too_large", f"the request head is over {limit} bytes; send fewer or shorter headers", closes=True
    )


def _too_many(limit: int) -> RefusedError:
    return RefusedError(
        503,
        "too_many_connections",
        f"this gateway worker has {limit} connections, as many as gateway.max_connections allows; try again shortly",
        headers=b"Retry-After: 1\r\n",
        closes=True,
    )
