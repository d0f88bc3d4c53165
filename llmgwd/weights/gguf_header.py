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
_WHOLE = frozenset("BbHhIiQq")
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

_HEADS = ("attention.head_count", "embedding_length")

LONGEST_LIST = 1024
"""Whole numbers of an array that are kept as they are: one a layer, where layers differ."""

Value = int | float | bool | bytes | tuple[int, ...]


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
        """By key; an array as the hash of its bytes, but for short lists of whole numbers. Raises ValueError."""
        if self._take(4) != _MAGIC or self._number("I") not in _VERSIONS:
            raise ValueError("no GGUF of a known version")
        self._number("Q")  # of tensors
        return dict(self._entry() for _ in range(int(self._number("Q"))))

    def _entry(self) -> tuple[str, Value]:
        key, kind = self._text().decode("utf-8", "replace"), int(self._number("I"))
        # What is compared by hash stays so: hashes of an earlier version are still compared with.
        is_listed = kind == _ARRAY and not key.startswith("tokenizer.")
        return key, self._list() if is_listed else self._value(kind)

    def _value(self, kind: int) -> Value:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            return self._array_hash()
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        raise ValueError(f"no kind {kind}")

    def _list(self) -> Value:
        kind, count = int(self._number("I")), int(self._number("Q"))
        if count > LONGEST_LIST or _SCALARS.get(kind) not in _WHOLE:
            return self._hash_of(kind, count)
        return tuple(int(self._number(_SCALARS[kind])) for _ in range(count))

    def _array_hash(self) -> bytes:
        return self._hash_of(int(self._number("I")), int(self._number("Q")))

    def _hash_of(self, kind: int, count: int) -> bytes:
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
        cache_values=_cache_values(entries, name),
    )


def _cache_values(entries: dict[str, Value], name: str | None) -> int | None:
    """As llama.cpp sizes its cache: in each layer, the heads that keep keys and values times the length of both."""
    layers, heads, width = (entries.get(f"{name}.{key}") for key in ("block_count", *_HEADS))
    kept = entries.get(f"{name}.attention.head_count_kv", heads)
    if not isinstance(layers, int):
        return None
    by_layer = kept if isinstance(kept, tuple) else (kept,) * layers
    usual = width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None
    lengths = [entries.get(f"{name}.attention.{which}_length", usual) for which in ("key", "value")]
    numbers = [number for number in (*by_layer, *lengths) if isinstance(number, int)]
    if len(numbers) < len(by_layer) + len(lengths):
        return None
    return sum(numbers[: len(by_layer)]) * sum(numbers[len(by_layer) :])


def _hash_of(entries: dict[str, Value]) -> str:
    """Of none as well, so that a template that comes or goes is a difference."""
    digest = hashlib.sha256()
    for key in sorted(entries):
        digest.update(f"{key}={entries[key]!r}\n".encode())
    return digest.hexdigest()
