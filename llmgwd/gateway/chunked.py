"""Chunked request bodies, read strictly: CRLF only, plain hexadecimal sizes, extensions and trailers dropped."""

import re

from llmgwd.gateway.answers import RefusedError

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")
_MAX_LINE_BYTES = 4096
_MAX_TRAILER_BYTES = 16 * 1024
_MANY_CHUNKS = 65_536
_LEAST_MEAN_BYTES = 64
"""Past that many, chunks must be so large on average: each costs time that the other clients wait for."""


class ChunkedBody:
    """Takes a chunked body off the front of a buffer, piece by piece."""

    __slots__ = ("_body", "_buffered", "_chunks", "_in_trailer", "_left", "_limit_bytes", "_overhead", "_trailer_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._body = bytearray()
        self._buffered = 0
        self._chunks = 0
        self._overhead = 0
        self._left: int | None = None
        """Bytes of the current chunk and its line end still to come; None before a size line."""
        self._in_trailer = False
        self._trailer_bytes = 0

    def take(self, buffer: bytearray) -> bytes | None:
        """The whole body once its last byte is there, else None; what it used is gone from the buffer.

        Raises RefusedError: 400 for bad framing, 413 over the limit.
        """
        while True:
            if self._left is not None:
                if not self._take_data(buffer):
                    return None
                continue
            line = self._take_line(buffer)
            if line is None:
                return None
            if self._in_trailer:
                if not line:
                    return bytes(self._body)
                self._check_trailer(line)
                continue
            self._open_chunk(line)

    def _take_data(self, buffer: bytearray) -> bool:
        assert self._left is not None
        data_left = self._left - 2
        if data_left > 0:
            before = len(self._body)
            self._body += memoryview(buffer)[:data_left]
            taken = len(self._body) - before
            del buffer[:taken]
            self._left -= taken
            if self._left > 2:
                return False
        if len(buffer) < 2:
            return False
        if buffer[:2] != b"\r\n":
            raise _bad("a chunk does not end in CRLF")
        del buffer[:2]
        self._left = None
        return True

    def _take_line(self, buffer: bytearray) -> bytes | None:
        end = buffer.find(b"\n", 0, _MAX_LINE_BYTES)
        if end < 0:
            if len(buffer) >= _MAX_LINE_BYTES:
                raise _bad("a chunk's size line is too long")
            return None
        if end == 0 or buffer[end - 1] != 0x0D:
            raise _bad("a chunk's size line ends in a bare LF")
        line = bytes(buffer[: end - 1])
        del buffer[: end + 1]
        return line

    def _open_chunk(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise _bad("a chunk's size is not plain hexadecimal")
        size = int(match[1], 16)
        self._buffered += size
        self._chunks += 1
        if self._chunks > _MANY_CHUNKS and self._buffered < self._chunks * _LEAST_MEAN_BYTES:
            raise _bad("it comes in too many too small chunks")
        # Extensions and one-byte chunks carry bytes that are no body; they count, or they would be free.
        self._overhead += len(line)
        if self._buffered > self._limit_bytes or self._overhead > self._limit_bytes + _MAX_TRAILER_BYTES:
            raise too_large(self._limit_bytes)
        if size == 0:
            self._in_trailer = True
        else:
            self._left = size + 2

    def _check_trailer(self, line: bytes) -> None:
        self._trailer_bytes += len(line)
        if self._trailer_bytes > _MAX_TRAILER_BYTES or _TRAILER_LINE.fullmatch(line) is None:
            raise _bad("a trailer line is malformed or too long")


def too_large(limit_bytes: int) -> RefusedError:
    return RefusedError(
        413,
        "request_too_large",
        f"the request body is over the limit of {limit_bytes} bytes; send less, or raise gateway.max_body",
        closes=True,
    )


def _bad(why: str) -> RefusedError:
    return RefusedError(
        400, "bad_request", f"the request body was not understood: {why}; send plain HTTP/1.1", closes=True
    )
