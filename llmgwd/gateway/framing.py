"""The head of a relayed reply: which headers pass, and how the body's end is told to this client."""

from enum import Enum

from llmgwd.gateway.answers import reason_phrase
from llmgwd.gateway.heads import RequestHead
from llmgwd.gateway.upstream import UpstreamConnection

_NOT_FORWARDED = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        b"x-llmgw-arm",
        b"x-llmgw-rescued",
    )
)
_BODILESS = frozenset((204, 304))


class Framing(Enum):
    """How the client learns where the body ends."""

    NO_BODY = "no body"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


def framing_for(request: RequestHead, reply: UpstreamConnection, *, changes: bool, complete: bool) -> Framing:
    """The framing of a reply whose first bytes are about to leave. `complete` when nothing comes after them."""
    if request.method == b"HEAD" or reply.status in _BODILESS:
        return Framing.NO_BODY
    if complete or (reply.content_length is not None and not changes):
        return Framing.LENGTH
    return Framing.CHUNKED if request.minor == 1 else Framing.CLOSE


def reply_head(reply: UpstreamConnection, framing: Framing, length: int | None, own_lines: bytes) -> bytes:
    """The head as the client gets it. `length` is for LENGTH, or what a reply to HEAD announced; None says nothing."""
    lines = [b"HTTP/1.1 %d %b" % (reply.status, reason_phrase(reply.status))]
    nominated = _nominated(reply)
    for name, value in reply.headers:
        lowered = name.lower()
        if lowered not in _NOT_FORWARDED and lowered not in nominated:
            lines.append(name + b": " + value)
    if framing is Framing.CHUNKED:
        lines.append(b"Transfer-Encoding: chunked")
    elif length is not None and framing is not Framing.CLOSE:
        lines.append(b"Content-Length: %d" % length)
    return b"\r\n".join(lines) + b"\r\n" + own_lines + b"\r\n"


def _nominated(reply: UpstreamConnection) -> frozenset[bytes]:
    for name, value in reply.headers:
        if name.lower() == b"connection" and value.lower() not in (b"close", b"keep-alive"):
            return frozenset(option.strip() for option in value.lower().split(b","))
    return frozenset()
