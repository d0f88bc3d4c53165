"""What a folder of weights says about its model in its small files."""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from llmgwd.domain.files import RepoFile, kind_of
from llmgwd.domain.traits import Traits

LONGEST_BYTES = 16 << 20
CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
TEMPLATES = ("chat_template.jinja", "chat_template.json")


def read_traits(files: Iterable[RepoFile], content: Callable[[RepoFile], bytes]) -> Traits | None:
    """None when there is no config.json. Raises what content does, which is asked for small files only."""
    by_path = {file.path: file for file in files if file.size_bytes <= LONGEST_BYTES}
    if CONFIG not in by_path:
        return None
    config = _mapping(content(by_path[CONFIG]))
    tokenizer = _mapping(content(by_path[TOKENIZER_CONFIG])) if TOKENIZER_CONFIG in by_path else {}
    inline = tokenizer.pop("chat_template", "")
    template = [by_path[path].content_id for path in TEMPLATES if path in by_path] or inline
    tokens = sorted((path, file.content_id) for path, file in by_path.items() if _is_vocabulary(path))
    text = config.get("text_config")
    text = text if isinstance(text, dict) else {}
    return Traits(
        architecture=_word(config.get("model_type")),
        quantisation=_quantisation(config),
        context_length=_context_length(config) or _context_length(text),
        tokenizer=_hash_of([tokens, tokenizer]),
        chat_template=_hash_of(template),
        cache_values=_cache_values(config | text),
    )


def _is_vocabulary(path: str) -> bool:
    return path != TOKENIZER_CONFIG and kind_of(path) == "tokenizer"


def _quantisation(config: dict[str, Any]) -> str | None:
    """`awq 4 bit`, or the type of numbers when they are not quantised."""
    found = config.get("quantization_config")
    if isinstance(found, dict):
        bits = found.get("bits")
        return f"{_word(found.get('quant_method')) or 'quantised'}{f' {bits} bit' if isinstance(bits, int) else ''}"
    return _word(config.get("torch_dtype") or config.get("dtype"))


def _context_length(config: dict[str, Any]) -> int | None:
    found = config.get("max_position_embeddings")
    return found if isinstance(found, int) else None


def _cache_values(config: dict[str, Any]) -> int | None:
    """Of all layers alike; a model with latent attention keeps one vector for keys and values (kv_lora_rank)."""

    def number(key: str) -> int | None:
        found = config.get(key)
        return found if isinstance(found, int) and found > 0 else None

    layers, heads, width = number("num_hidden_layers"), number("num_attention_heads"), number("hidden_size")
    if layers is None:
        return None
    if latent := number("kv_lora_rank"):
        return layers * (latent + (number("qk_rope_head_dim") or 0))
    kept = number("num_key_value_heads") or heads
    length = number("head_dim") or (width // heads if width and heads else None)
    return layers * kept * 2 * length if kept and length else None


def _mapping(data: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _hash_of(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()
