"""What LoRA adapters come as."""

from enum import StrEnum


class AdapterFormat(StrEnum):
    ANY = "any"
    """The engine is not known well enough to say."""
    GGUF = "gguf"
    """One file, as llama.cpp takes it."""
    PEFT = "peft"
    """A folder with `adapter_config.json` and safetensors, as training leaves it."""
