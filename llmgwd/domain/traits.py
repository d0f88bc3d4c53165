"""What weights say about themselves beside their tensors, and in what two of them differ."""

import msgspec


class Traits(msgspec.Struct, frozen=True):
    """What is null is not known. tokenizer and chat_template are hashes: only whether they differ can be told."""

    architecture: str | None = None
    quantisation: str | None = None
    context_length: int | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    cache_values: int | None = None
    """Numbers that an engine keeps of each token of the context, over all layers: the keys and values of attention."""


_IN_WORDS = {"architecture": "architecture", "quantisation": "quantisation", "context_length": "context length"}
_BY_HASH = {"tokenizer": "tokenizer", "chat_template": "chat template"}


def differences(old: Traits, new: Traits) -> list[str]:
    """Names of what differs, with both values where people can read them: `context length 8192 → 32768`."""
    found = []
    for field, name in (_BY_HASH | _IN_WORDS).items():
        before, after = getattr(old, field), getattr(new, field)
        if before is None or after is None or before == after:
            continue
        found.append(f"{name} {before} → {after}" if field in _IN_WORDS else name)
    return found
