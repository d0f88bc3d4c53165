"""What a replica will take, before it was ever started; and what its last start says of the next one. Pure.

weights + context + margin, where the context is (as llama.cpp sizes it, `llama_kv_cache`)

    tokens x layers x heads that keep keys and values x (length of a key + length of a value) x bytes of a number

Measured on the embedded engine with SmolLM2-135M, 30 layers, 3 heads, 64 + 64 numbers of 2 bytes: 8192 tokens in each
of 4 slots are 720 MiB by this formula, and the process took 773 MiB besides its weights; with 1 slot 180 and 231 MiB.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from llmgwd.domain.room import Needs

MARGIN_BYTES = 128 << 20
MARGIN_SHARE = 0.1
"""Of weights and context: buffers to compute in, which grow with both."""
HOST_BESIDE_GPU_BYTES = 2 << 30
"""What an engine takes of the host's memory for each GPU: Python, CUDA and their buffers."""
SIMILAR_SHARE = 0.1
"""Weights whose sizes differ by no more of theirs take alike."""

CONTEXT_OPTIONS = ("--ctx-size", "-c", "--max-model-len", "--context-length", "--max-total-tokens")
"""What llama.cpp, vLLM, SGLang and TGI call the tokens of context; llama.cpp means those of all slots together."""
CACHE_OPTIONS = ("--cache-type-k", "-ctk", "--cache-type-v", "-ctv", "--kv-cache-dtype")
BYTES_OF_NUMBER = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "auto": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32}
BYTES_OF_NUMBER |= {"q4_1": 20 / 32, "q4_0": 18 / 32, "iq4_nl": 18 / 32, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0}
UNMAPPED_OPTIONS = ("--no-mmap", "--mlock")


class Weighed(msgspec.Struct, frozen=True):
    """Weights as far as memory goes: their files by content with sizes, and what a token of context takes."""

    files: tuple[tuple[str, int], ...]
    is_gguf: bool = False
    """Then engines map them, so that those who serve the same file share it."""
    context_length: int | None = None
    cache_values: int | None = None

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in self.files)


class Footprint(msgspec.Struct, frozen=True):
    """What a start took, measured once it answered. `runs` tells engines with other arguments apart."""

    model: str
    runs: str
    weights_bytes: int
    context_bytes: int
    """By the formula: a context of another size takes otherwise."""
    private_bytes: int
    maps_weights: bool
    gpu_bytes: int
    """On each of its GPUs."""
    at: datetime


def context_bytes(weighed: Weighed, words: Sequence[str], slots: int | None) -> int:
    """0 when the weights do not say what a token takes, or nobody says how many there are."""
    tokens = max((int(value) for value in _values(words, CONTEXT_OPTIONS) if value.isdigit()), default=0)
    if not tokens:
        # llama.cpp gives each slot the context that the model was trained with, unless all share one.
        alike = weighed.is_gguf and "--kv-unified" not in words and "-kvu" not in words
        tokens = (weighed.context_length or 0) * ((slots or 1) if alike else 1)
    sizes = [BYTES_OF_NUMBER[value] for value in _values(words, CACHE_OPTIONS) if value in BYTES_OF_NUMBER]
    return int(tokens * (weighed.cache_values or 0) * max(sizes, default=2.0))


def estimate(weighed: Weighed, words: Sequence[str], slots: int | None, gpus: int) -> Needs:
    """Of one replica; words is its command line."""
    weights, context = weighed.size_bytes, context_bytes(weighed, words, slots)
    margin = MARGIN_BYTES + int(MARGIN_SHARE * (weights + context))
    parts = (("weights", weights), ("context", context), ("margin", margin))
    if gpus:
        each = (weights + context + margin) // gpus
        return Needs(private_bytes=HOST_BESIDE_GPU_BYTES * gpus, gpus=gpus, gpu_bytes=each, parts=parts)
    maps = weighed.is_gguf and not any(word in UNMAPPED_OPTIONS for word in words)
    private = context + margin + (0 if maps else weights)
    return Needs(private_bytes=private, mapped=weighed.files if maps else (), parts=parts)


def as_measured(weighed: Weighed, context: int, gpus: int, known: Iterable[Footprint]) -> Needs | None:
    """By the footprint of the most similar weights; None when none is similar enough."""
    size = weighed.size_bytes
    similar = [
        each
        for each in known
        if each.context_bytes == context and abs(each.weights_bytes - size) <= SIMILAR_SHARE * max(size, 1)
    ]
    if not similar:
        return None
    found = min(similar, key=lambda each: abs(each.weights_bytes - size))
    more = max(0, size - found.weights_bytes)
    if gpus:
        each = found.gpu_bytes + more // gpus if found.gpu_bytes else 0
        return Needs(found.private_bytes, gpus=gpus, gpu_bytes=each, measured=True)
    private = found.private_bytes + (0 if found.maps_weights else more)
    mapped = weighed.files if found.maps_weights else ()
    parts = (("weights", size), ("its own", private)) if mapped else ()
    return Needs(private, mapped, parts=parts, measured=True)


def _values(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """What follows the options; of the same one given twice, both."""
    found = []
    for word, after in zip(words, (*words, "")[1:], strict=True):
        option, equals, value = word.partition("=")
        if option in options:
            found.append(value if equals else after)
    return found
