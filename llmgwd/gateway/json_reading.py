"""JSON as engines write it: read strictly and fast, and where that fails the way Python's own module reads it."""

import json
from collections.abc import Callable
from typing import TypeVar

import msgspec

Shape = TypeVar("Shape")

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What is raised for text that is broken, in another coding, or nested without end."""


def decoder(shape: type[Shape]) -> Callable[[bytes | bytearray], Shape]:
    """Reads text into a shape. Raises one of UNREADABLE; ValidationError is the one of sound JSON in another shape.

    Engines in Python write NaN and halves of surrogate pairs, and clients in Python read them.
    """
    strictly = msgspec.json.Decoder(shape).decode

    def decode(text: bytes | bytearray) -> Shape:
        try:
            return strictly(text)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            try:
                value = json.loads(text)
            except ValueError:
                raise error from None
        return msgspec.convert(value, shape)

    return decode
