"""Frames on a socket: a 4-byte big-endian length, then that many bytes of MessagePack."""

import struct

HEADER = struct.Struct(">I")
MAX_FRAME_BYTES = 16 * 1024 * 1024


class FrameError(Exception):
    """The peer sent a frame that is longer than allowed."""


def frame(payload: bytes) -> bytes:
    """The bytes that carry one message. Raises FrameError over MAX_FRAME_BYTES."""
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(payload)} bytes does not fit a frame of {MAX_FRAME_BYTES}")
    return HEADER.pack(len(payload)) + payload


class FrameReader:
    """Cuts a byte stream into frames, whatever the pieces it arrives in."""

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._limit_bytes = limit_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are whole with this data. Raises FrameError when one announces too much."""
        self._buffer += data
        frames: list[bytes] = []
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            if length > self._limit_bytes:
                raise FrameError(f"a frame of {length} bytes is over the limit of {self._limit_bytes}")
            if len(self._buffer) < HEADER.size + length:
                break
            frames.append(bytes(self._buffer[HEADER.size : HEADER.size + length]))
            del self._buffer[: HEADER.size + length]
        return frames
