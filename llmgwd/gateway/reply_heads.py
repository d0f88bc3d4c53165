"""Heads of replies: what one says and what of it goes on; and the last one, remembered to be known again."""

import re

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
        b"x-llmgw-rescued",
    )
)
_LENGTH = re.compile(rb"\r\ncontent-length: ([0-9]{1,15})(?=\r\n)", re.IGNORECASE)
_DATE = re.compile(rb"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT")
_DATE_BYTES = 29
_DATE_LINE = re.compile(rb"\r\ndate: (%b)(?=\r\n)" % _DATE.pattern, re.IGNORECASE)
_MOST_LESSONS = 100
"""An engine whose heads differ by more than date and length is not studied for ever."""


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


class LastHead:
    """The last head of a whole reply, by which the next is known if it differs in nothing but its date and length.

    It was read by the HTTP parser once; one that is the same need not be read again.
    """

    __slots__ = ("_behind", "_date", "_date_at", "_date_line", "_head", "_length_at", "_lessons", "_rest")

    def __init__(self) -> None:
        self._head: ReplyHead | None = None
        self._length_at = 0
        self._behind = 0
        """How many bytes stand behind the length's digits."""
        self._date_at: int | None = None
        self._date = self._date_line = b""
        self._rest = b""
        """All of it but those digits and the date."""
        self._lessons = 0

    def learn(self, data: bytes, head: ReplyHead) -> None:
        """Remembers the head of a whole reply after which the connection can be used again."""
        end = data.find(b"\r\n\r\n") + 4
        length = _LENGTH.search(data, 0, end)
        if (
            length is None
            or not data.startswith(b"HTTP/1.1 %d" % head.status)
            or head.status in BODILESS
            or len(data) != end + int(length[1])
            or self._lessons >= _MOST_LESSONS
        ):
            return
        self._lessons += 1
        rest = data[: length.start(1)] + data[length.end(1) : end]
        date = _DATE_LINE.search(rest)
        if date is not None:
            rest = rest[: date.start(1)] + rest[date.end(1) :]
        self._head = head
        self._length_at, self._behind = length.start(1), end - length.end(1)
        self._date_at = date.start(1) if date is not None else None
        self._rest = rest

    def known(self, data: bytes) -> tuple[ReplyHead, bytes, bytes] | None:
        """A whole reply with such a head: what that says, the line of its date, its body. None: it has to be parsed."""
        head = self._head
        if head is None:
            return None
        length_at = self._length_at
        digits_end = data.find(b"\r", length_at, length_at + 16)
        digits = data[length_at:digits_end]
        end = digits_end + self._behind
        if not digits.isdigit() or len(data) != end + int(digits):
            return None
        rest = data[:length_at] + data[digits_end:end]
        if self._date_at is not None:
            date = rest[self._date_at : self._date_at + _DATE_BYTES]
            rest = rest[: self._date_at] + rest[self._date_at + _DATE_BYTES :]
            if date != self._date:
                if _DATE.fullmatch(date) is None:
                    return None
                self._date, self._date_line = date, b"Date: %b\r\n" % date
        if rest != self._rest:
            return None
        return head, self._date_line, data[end:]
