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
from llmgwd.gateway.refusals import head_too_large, too_many_connections, too_much_ahead, too_slow
from llmgwd.gateway.state import Gateway
from llmgwd.gateway.table import Table

_HEADS = HeadParser(forwards_authorization=True)
"""For the time before the first table."""
_LINGER_S = 2.0
_FIRST_REQUEST_S = 1.0
"""How long a connection that never asked anything may still do so when the worker is to end."""
MOST_EXCESS = 256
"""Connections over the limit that are answered at a time; any more are closed without a word."""
_NEVER = float("inf")
_EMPTY_LINE = b"\r\n"
_HEAD_END = b"\r\n\r\n"
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
        "_has_asked",
        "_head",
        "_is_advancing",
        "_is_in_head",
        "_is_lingering",
        "_judged_by",
        "_last_head",
        "_length",
        "_raw_head",
        "_searched",
        "_transport",
        "_unread",
        "is_paused",
    )

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: RequestHead | None = None
        """Of the request whose body is awaited."""
        self._raw_head = b""
        self._judged_by: Table | None = None
        """By which the last head was read, and its key checked."""
        self._last_head: LastHead[RequestHead] = LastHead()
        self._chunked: ChunkedBody | None = None
        self._exchange: Exchange | None = None
        self._length = 0
        self._searched = 0
        """How far into the buffer there is no end of a head."""
        self._body_begun_at: float | None = None
        self._body_bytes = 0
        self._deadline = _NEVER
        self._has_asked = False
        self._is_advancing = False
        self._is_in_head = False
        self._is_lingering = False
        self._unread = _NEVER
        """Bytes of the reply that were still to be taken by the client when this was last looked at."""
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
        self._deadline = self._gateway.loop.time() + self._gateway.settings.idle_timeout_s
        if not keep:
            transport.close()
            return
        if self._buffer:
            if len(self._buffer) > self._gateway.settings.ahead_bytes and not self._is_advancing:
                self._refuse_and_close(too_much_ahead(self._gateway.settings.ahead_bytes))
                return
            self._advance()
        if self._gateway.closes_idle:
            self.finish()

    def refuse(self, refusal: RefusedError, head: RequestHead | None) -> bool:
        """Writes the error; whether the connection can be kept. `head` is None when it was not understood."""
        body = error_json(refusal.status, refusal.code, refusal.message, refusal.param)
        return self.answer(refusal.status, body, refusal.headers, head, closes=refusal.closes)

    def answer(self, status: int, body: bytes, lines: bytes, head: RequestHead | None, *, closes: bool = False) -> bool:
        """Writes the gateway's own JSON reply; whether the connection can be kept."""
        close = closes or self._gateway.is_finishing or head is None or not head.keep_alive
        # A head that was refused is still in the buffer.
        is_head = head.method == b"HEAD" if head is not None else self._buffer.lstrip(b"\r\n").startswith(b"HEAD ")
        self.write(
            answer(
                status,
                body,
                headers=lines,
                close=close,
                keep_alive_said=head is not None and head.minor == 0,
                without_body=is_head,
            )
        )
        return not close

    # the gateway's side

    def check(self, now: float) -> None:
        """Ends what is past its deadline at `now` of the loop's clock."""
        if self._exchange is not None:
            self._exchange.check(now)
        elif now >= self._deadline and self._transport is not None:
            self._time_out(self._transport, now)

    def finish(self) -> None:
        """Closes it if it is idle; but the first request may be on its way from who has just connected."""
        if self._transport is None or self._exchange is not None or not self._is_between_requests:
            return
        if self._has_asked:
            self._transport.close()
        else:
            self._deadline = self._gateway.loop.time() + _FIRST_REQUEST_S

    def abort(self) -> None:
        """Cuts it, even with words still to be read."""
        if self._transport is not None:
            self._transport.abort()

    def abort_unless_closing(self) -> None:
        """Cuts it, but leaves one that closes the time to read its last words."""
        if self._is_open():
            self.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        limit = self._gateway.settings.max_connections
        if len(self._gateway.clients) < limit:
            self._gateway.clients.add(self)
            self._deadline = self._gateway.loop.time() + self._gateway.settings.idle_timeout_s
        elif len(self._gateway.excess) < MOST_EXCESS:
            self._gateway.excess.add(self)
            self._refuse_and_close(too_many_connections(limit))
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
        if self._exchange is not None:
            # Reading goes on: nothing else tells of a client that leaves. What is too much is refused after the reply.
            if len(self._buffer) <= self._gateway.settings.ahead_bytes:
                self._buffer += data
            return
        self._buffer += data
        self._body_bytes += len(data)
        self._advance()
        if self.is_paused and self._exchange is None and self._transport is not None:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self.is_paused = True
        if self._exchange is not None:
            self._exchange.client_paused()

    def resume_writing(self) -> None:
        self.is_paused = False
        if self._exchange is not None:
            self._exchange.client_resumed()
            return
        if self._transport is not None:
            self._transport.resume_reading()
        if self._head is None and not self._is_lingering:
            self._deadline = self._gateway.loop.time() + self._gateway.settings.idle_timeout_s
        if self._buffer:
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

    @property
    def _is_between_requests(self) -> bool:
        """Whether no byte of a request is there, but for the empty line that may come before one."""
        return self._head is None and (not self._buffer or self._buffer == _EMPTY_LINE)

    def _begin_whole(self, head: RequestHead, body: bytes) -> bool:
        """Starts a request that came whole and whose head is known; False when it must be looked at more closely."""
        table = self._gateway.table
        if table is None or table is not self._judged_by or len(body) > self._gateway.settings.max_body_bytes:
            return False
        try:
            check_key(table, head)
        except RefusedError as refusal:
            self._refuse_and_close(refusal, head)
            return True
        self._begin(head, body)
        return True

    def _begin(self, head: RequestHead, body: bytes) -> None:
        self._unread = _NEVER
        self._has_asked = True
        exchange = self._exchange = Exchange(self._gateway, self, head, body)
        exchange.start()

    def _next_request(self) -> bool:
        """Takes the next request off the buffer and starts it; False when it is not all there. Raises RefusedError."""
        if self._head is None and not self._take_head():
            return False
        body = self._take_body()
        if body is None:
            self._wait_for_body()
            return False
        if self._judged_by is not self._gateway.table:
            # A key that was revoked while the body came opens nothing any more.
            self._judge_head()
        head = self._head
        assert head is not None
        self._head = self._chunked = self._body_begun_at = None
        self._raw_head = b""
        self._begin(head, body)
        return True

    def _take_head(self) -> bool:
        """Takes a head off the buffer; False when it is not all there. Raises RefusedError."""
        buffer = self._buffer
        # One empty line before a request is an old client's habit, which the standard asks to overlook.
        start = len(_EMPTY_LINE) if buffer.startswith(_EMPTY_LINE) else 0
        limit = self._gateway.settings.max_head_bytes
        end = buffer.find(_HEAD_END, max(start, self._searched)) + len(_HEAD_END)
        if end < len(_HEAD_END):
            self._wait_for_head(limit)
            return False
        if end - start > limit:
            raise head_too_large(limit)
        self._is_in_head = False
        self._searched = 0
        self._raw_head = bytes(buffer[start:end])
        head = self._judge_head()
        if not head.chunked and not head.expects_continue and len(buffer) == end + self._length:
            self._last_head.learn(bytes(buffer[start:]), head)
        del buffer[:end]
        if self._length > self._gateway.settings.max_body_bytes:
            raise too_large(self._gateway.settings.max_body_bytes)
        if head.chunked:
            self._chunked = ChunkedBody(self._gateway.settings.max_body_bytes)
        if head.expects_continue and not buffer and (head.chunked or self._length):
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _judge_head(self) -> RequestHead:
        """Reads the head as the present table has it, and checks its key. Raises RefusedError."""
        table = self._gateway.table
        if table is not self._judged_by:
            # By another table something else may be made of the same head.
            self._judged_by = table
            self._last_head.forget()
        parser = table.heads if table is not None else _HEADS
        self._head, self._length = parser.parse(self._raw_head)
        check_key(table, self._head)
        return self._head

    def _wait_for_head(self, limit: int) -> None:
        if len(self._buffer) > limit:
            raise head_too_large(limit)
        if _CANNOT_BE_HEAD.search(self._buffer, self._searched) is not None:
            raise why_malformed(bytes(self._buffer))
        # What the end of the buffer may be the beginning of is looked at again.
        self._searched = max(0, len(self._buffer) - len(_HEAD_END) + 1)
        if not self._is_in_head and not self._is_between_requests:
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

    def _refuse_and_close(self, refusal: RefusedError, head: RequestHead | None = None) -> None:
        """Answers what cannot be served, then reads on for a moment: closing on unread bytes would reset the answer."""
        refusal.closes = True
        self.refuse(refusal, head or self._head)
        self._head = self._chunked = self._body_begun_at = None
        self._buffer.clear()
        self._searched = 0
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._is_lingering = True
            self._deadline = self._gateway.loop.time() + _LINGER_S
            transport.write_eof()

    def _time_out(self, transport: asyncio.Transport, now: float) -> None:
        unread = transport.get_write_buffer_size()
        if 0 < unread < self._unread:
            # As long as it reads on it is not idle, nor in anyone's way, however slow it is.
            self._unread = unread
            self._deadline = now + self._gateway.settings.idle_timeout_s
            return
        if unread or not self._is_open() or self._is_between_requests:
            transport.abort()
            return
        what = "head" if self._head is None else "body"
        self._refuse_and_close(too_slow(what))
