"""A small LoRA adapter for the demo's model: of random numbers, and strong enough that no answer stays as it was."""

from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter, Keys

RANK = 8
ALPHA = 16.0
STRENGTH = 0.3
SEED = 20250602


def make_adapter(base: Path, target: Path) -> None:
    """Writes one that fits the model in `base`, as llama.cpp's own converter would."""
    reader, random = GGUFReader(base), np.random.default_rng(SEED)
    writer = GGUFWriter(target, arch=str(reader.fields[Keys.General.ARCHITECTURE].contents()))
    writer.add_type("adapter")
    writer.add_string(Keys.Adapter.TYPE, "lora")
    writer.add_float32(Keys.Adapter.LORA_ALPHA, ALPHA)
    for tensor in reader.tensors:
        if tensor.name.endswith(("attn_q.weight", "ffn_down.weight")):
            taken, given = (int(size) for size in tensor.shape)
            for letter, shape in (("a", (RANK, taken)), ("b", (given, RANK))):
                values = random.standard_normal(shape, dtype=np.float32) * np.float32(STRENGTH)
                writer.add_tensor(f"{tensor.name}.lora_{letter}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
