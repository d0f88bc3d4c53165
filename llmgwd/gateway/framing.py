"""A relayed reply as the client gets it: its head, and how the body's end is told to this client."""

from enum import Enum
from typing import TYPE_CHECKING

from llmgwd.gateway.answers import connection_line
from llmgwd.gateway.heads import RequestHead
from llmgwd.gateway.reply_heads import BODILESS
from llmgwd.gateway.upstream import UpstreamConnection

if TYPE_CHECKING:
    from llmgwd.gateway.client import ClientConnection


class Framing(Enum):
    """How the client learns where the body ends."""

    NO_BODY = "no body"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


class ReplyWriter:
    """Writes one reply, its head together with its first bytes."""

    __slots__ = ("_client", "_framing", "_request", "is_begun", "keeps_alive")

    def __init__(self, client: "ClientConnection", request: RequestHead) -> None:
        self._client = client
        self._request = request
        self._framing = Framing.NO_BODY
        self.is_begun = False
        """Whether the client has been sent any byte."""
        self.keeps_alive = request.keep_alive
        """Whether the connection may serve another request; settled once the head is written."""

    @property
    def takes_events(self) -> bool:
        """Whether bytes that the engine did not announce can be added at the end."""
        return self._framing is Framing.CHUNKED or self._framing is Framing.CLOSE

    @property
    def is_chunked(self) -> bool:
        """Whether the client gets the body in chunks, and has got the head."""
        return self.is_begun and self._framing is Framing.CHUNKED

    def begin(self, reply: UpstreamConnection, out: bytes, own_lines: bytes, *, changes: bool, complete: bool) -> None:
        """Writes the head and the first bytes.

        `own_lines` are the gateway's headers, `changes` says that the body may differ in length from what the engine
        announced, `complete` that these bytes are all of it.
        """
        request, head = self._request, reply.head
        assert head is not None
        how = self._framing = _framing(request, reply, changes=changes, complete=complete)
        self.is_begun = True
        self.keeps_alive = self.keeps_alive and how is not Framing.CLOSE
        framing = b""
        if how is Framing.CHUNKED:
            framing = b"Transfer-Encoding: chunked\r\n"
        elif how is Framing.LENGTH and complete:
            framing = b"Content-Length: %d\r\n" % len(out)
        elif how is not Framing.CLOSE and reply.content_length is not None and head.status != 204:
            framing = b"Content-Length: %d\r\n" % reply.content_length
        connection = connection_line(not self.keeps_alive, request.minor == 0)
        lines = b"%b%b%b%b%b%b\r\n" % (head.start, head.lines, reply.date_line, framing, own_lines, connection)
        self._write(lines, out, complete)

    def go_on(self, out: bytes, *, complete: bool) -> None:
        """Writes more of the body."""
        self._write(b"", out, complete)

    def _write(self, head: bytes, out: bytes, complete: bool) -> None:
        how = self._framing
        if how is Framing.CHUNKED:
            if not complete:
                self._client.write(b"%b%x\r\n%b\r\n" % (head, len(out), out))
            elif out:
                self._client.write(b"%b%x\r\n%b\r\n0\r\n\r\n" % (head, len(out), out))
            else:
                self._client.write(head + b"0\r\n\r\n")
        elif how is Framing.NO_BODY:
            self._client.write(head)
        elif head or out:
            self._client.write(head + out)


def _framing(request: RequestHead, reply: UpstreamConnection, *, changes: bool, complete: bool) -> Framing:
    assert reply.head is not None
    if request.method == b"HEAD" or reply.head.status in BODILESS:
        return Framing.NO_BODY
    if complete or (reply.content_length is not None and not changes):
        return Framing.LENGTH
    return Framing.CHUNKED if request.minor == 1 else Framing.CLOSE
