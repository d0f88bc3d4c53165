"""What a GGUF file says about its model, read from its start: the metadata comes before the tensors.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import hashlib
import struct
from collections.abc import Callable

from llmgwd.domain.traits import Traits

LONGEST_BYTES = 64 << 20
"""The longest metadata that is read. A vocabulary of 260,000 tokens with its merges takes about 15 MB."""

Read = Callable[[int], bytes]
"""The next so many bytes; fewer at the end of the file."""

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9

# general.file_type, as llama.cpp numbers it.
FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
}

Value = int | float | bool | bytes


def read_traits(read: Read) -> Traits | None:
    """None when this is no GGUF file, or one that is damaged, of another version or too long. Raises what read does."""
    try:
        return _traits(_Metadata(read).entries())
    except (ValueError, struct.error):
        return None


class _Metadata:
    def __init__(self, read: Read) -> None:
        self._read = read
        self._left = LONGEST_BYTES

    def entries(self) -> dict[str, Value]:
        """By key; an array as the hash of its bytes. Raises ValueError."""
        if self._take(4) != _MAGIC or self._number("I") not in _VERSIONS:
            raise ValueError("no GGUF of a known version")
        self._number("Q")  # of tensors
        return dict(self._entry() for _ in range(int(self._number("Q"))))

    def _entry(self) -> tuple[str, Value]:
        key = self._text().decode("utf-8", "replace")
        return key, self._value(int(self._number("I")))

    def _value(self, kind: int) -> Value:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            return self._array_hash()
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        raise ValueError(f"no kind {kind}")

    def _array_hash(self) -> bytes:
        kind, count = int(self._number("I")), int(self._number("Q"))
        if kind == _ARRAY:
            raise ValueError("arrays of arrays")  # llama.cpp has none either, and a few MB nest deeper than any stack
        digest = hashlib.sha256(b"%d %d" % (kind, count))
        if kind in _SCALARS:
            digest.update(self._take(count * struct.calcsize(f"<{_SCALARS[kind]}")))
        else:
            for _ in range(count):
                digest.update(str(self._value(kind)).encode())
        return digest.digest()

    def _text(self) -> bytes:
        return self._take(int(self._number("Q")))

    def _number(self, form: str) -> int | float | bool:
        (number,) = struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))
        found: int | float | bool = number
        return found

    def _take(self, count: int) -> bytes:
        self._left -= count
        if self._left < 0:
            raise ValueError("too long for metadata")
        data = self._read(count)
        if len(data) != count:
            raise ValueError("cut short")
        return data


def _traits(entries: dict[str, Value]) -> Traits:
    architecture = entries.get("general.architecture")
    name = architecture.decode("utf-8", "replace") if isinstance(architecture, bytes) else None
    context, file_type = entries.get(f"{name}.context_length"), entries.get("general.file_type")
    templates = {key: value for key, value in entries.items() if key.startswith("tokenizer.chat_template")}
    vocabulary = {key: value for key, value in entries.items() if key.startswith("tokenizer.") and key not in templates}
    return Traits(
        architecture=name,
        quantisation=FILE_TYPES.get(file_type) if isinstance(file_type, int) else None,
        context_length=context if isinstance(context, int) else None,
        tokenizer=_hash_of(vocabulary),
        chat_template=_hash_of(templates),
    )


def _hash_of(entries: dict[str, Value]) -> str:
    """Of none as well, so that a template that comes or goes is a difference."""
    digest = hashlib.sha256()
    for key in sorted(entries):
        digest.update(f"{key}={entries[key]!r}\n".encode())
    return digest.hexdigest()
