"""Heads of replies: what one says, and what of it goes on to the client."""

from llmgwd.gateway.answers import reason_phrase

BODILESS = frozenset((204, 304))
_NOT_FORWARDED = frozenset(
    (
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"te",
        b"trailer",
        b"upgrade",
        b"x-llmgw-arm",
        b"x-llmgw-model",
        b"x-llmgw-rescued",
    )
)


class ReplyHead:
    """What one head says. Of its lines there are those to forward, each with its line end."""

    __slots__ = (
        "content_length",
        "content_type",
        "date_line",
        "is_encoded",
        "is_framed",
        "lines",
        "start",
        "status",
    )

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Raises ValueError for framing that is not one length or one chunked."""
        self.status = status
        self.start = b"HTTP/1.1 %d %b\r\n" % (status, reason_phrase(status))
        self.content_length: int | None = None
        self.content_type = b""
        self.is_encoded = False
        """Whether the body is compressed, and so cannot be read here."""
        self.is_framed = False
        """Whether it says where the body ends."""
        self.date_line = b""
        self.lines = self._read(headers)

    def _read(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        lines: list[bytes] = []
        nominated: list[bytes] = []
        for name, value in headers:
            lowered = name.lower()
            if lowered == b"content-length":
                self.content_length = int(value)
                self.is_framed = True
            elif lowered == b"transfer-encoding":
                if self.is_framed or value.strip().lower() != b"chunked":
                    # The parser would pass any other coding on as the body.
                    raise ValueError("the body's framing is not one length or one chunked")
                self.is_framed = True
            elif lowered == b"connection":
                nominated += [option.strip(b" \t") + b":" for option in value.lower().split(b",")]
            elif lowered == b"date" and not self.date_line:
                self.date_line = b"Date: %b\r\n" % value
            elif lowered not in _NOT_FORWARDED:
                lines.append(b"%b: %b\r\n" % (name, value))
                if lowered == b"content-type":
                    self.content_type = value.lower()
                elif lowered == b"content-encoding":
                    self.is_encoded = True
        if nominated:
            lines = [line for line in lines if not line.lower().startswith(tuple(nominated))]
        return b"".join(lines)
