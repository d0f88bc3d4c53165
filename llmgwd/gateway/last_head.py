"""The last head that came one way, by which the next is known without being parsed."""

import re
from typing import Generic, TypeVar

Head = TypeVar("Head")

_LENGTH = re.compile(rb"\r\ncontent-length: ([0-9]{1,15})(?=\r\n)", re.IGNORECASE)
_DATE = re.compile(rb"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT")
_DATE_BYTES = 29
_DATE_LINE = re.compile(rb"\r\ndate: (%b)(?=\r\n)" % _DATE.pattern, re.IGNORECASE)
_MOST_LESSONS = 100
"""Who sends heads that differ by more than date and length is not studied for ever."""


class LastHead(Generic[Head]):
    """Knows a whole message whose head differs from the last one's in nothing but its length and its date.

    The head was read by a full parser once; one that is otherwise the same byte for byte need not be read again.
    """

    __slots__ = ("_behind", "_date", "_date_at", "_date_line", "_head", "_length_at", "_lessons", "_rest")

    def __init__(self) -> None:
        self._head: Head | None = None
        self._length_at = 0
        self._behind = 0
        """How many bytes stand behind the length's digits."""
        self._date_at: int | None = None
        self._date = self._date_line = b""
        self._rest = b""
        """All of it but those digits and the date."""
        self._lessons = 0

    def forget(self) -> None:
        self._head = None

    def learn(self, data: bytes, head: Head) -> None:
        """Remembers what was read of a message's head, if the data is that head and all of its body."""
        if self._lessons >= _MOST_LESSONS:
            return
        end = data.find(b"\r\n\r\n") + 4
        length = _LENGTH.search(data, 0, end)
        if length is None or len(data) != end + int(length[1]):
            return
        self._lessons += 1
        rest = data[: length.start(1)] + data[length.end(1) : end]
        date = _DATE_LINE.search(rest)
        if date is not None:
            rest = rest[: date.start(1)] + rest[date.end(1) :]
        self._head = head
        self._date = self._date_line = b""
        self._length_at, self._behind = length.start(1), end - length.end(1)
        self._date_at = date.start(1) if date is not None else None
        self._rest = rest

    def known(self, data: bytes) -> tuple[Head, bytes, bytes] | None:
        """Of a whole message with such a head: the head, the line of its own date if that varies, the body.

        None: it has to be parsed.
        """
        head = self._head
        if head is None:
            return None
        length_at = self._length_at
        digits_end = data.find(b"\r", length_at, length_at + 16)
        if digits_end < 0:
            return None
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
