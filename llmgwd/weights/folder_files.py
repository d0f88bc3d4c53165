"""Repositories that an engine loads as a folder: which weights, and which small files belong to them."""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from llmgwd.domain.files import RepoFile

_PICKLE_SUFFIXES = {".bin", ".pt", ".pth"}
_COMPANION_SUFFIXES = {".json", ".model", ".jinja", ".tiktoken", ".spm"}
_COMPANION_NAMES = {"vocab.txt", "merges.txt"}
_NO_COMPANION = re.compile(
    r"\..*|.*\.bin\.index\.json|trainer_state\.json|training_args\.json|(all|train|eval)_results\.json"
    r"|quantize_log\.json|model_index\.json|adapter_config\.json"
)
# Sentence-transformers keep the pooling's settings in 1_Pooling/config.json; others, templates in a folder.
_COMPANION_FOLDERS = re.compile(r"\d+_[A-Za-z]+|additional_chat_templates")
_REMOTE_CODE = re.compile(r"(modeling|configuration|tokenization|processing|image_processing)_\w+\.py")
_NO_WEIGHTS = re.compile(r"adapter_model\.safetensors|training_args\.bin|optimizer\.\w+|scheduler\.\w+|rng_state.*")


def safetensors(files: Iterable[RepoFile]) -> list[RepoFile]:
    """The weights at the top of the repository. Mistral's own format beside the usual one is a duplicate."""
    found = [file for file in files if file.path.endswith(".safetensors") and _is_weights(file)]
    usual = [file for file in found if not file.name.startswith("consolidated")]
    return usual or found


def pickles(files: Iterable[RepoFile]) -> list[RepoFile]:
    """Weights that run code of the repository's author when they are loaded."""
    return [file for file in files if PurePosixPath(file.path).suffix in _PICKLE_SUFFIXES and _is_weights(file)]


def remote_code(files: Iterable[RepoFile]) -> list[RepoFile]:
    """Python that comes with the weights and that the engine would have to run to load them."""
    return [file for file in files if _REMOTE_CODE.fullmatch(file.path)]


def python(files: Iterable[RepoFile]) -> list[RepoFile]:
    """All Python of the repository: what is run to load it may import the rest."""
    return [file for file in files if file.path.endswith(".py")]


def companions(files: Iterable[RepoFile], weights: Iterable[RepoFile]) -> list[RepoFile]:
    """Index, tokenizer, configurations and chat template. Of the indexes only those that go with the weights."""
    suffixes = {PurePosixPath(file.path).suffix for file in weights}
    return [file for file in files if _is_companion(file, suffixes)]


def _is_weights(file: RepoFile) -> bool:
    return "/" not in file.path and not _NO_WEIGHTS.fullmatch(file.name)


def _is_companion(file: RepoFile, weights_suffixes: set[str]) -> bool:
    folder, _, name = file.path.rpartition("/")
    if folder and not _COMPANION_FOLDERS.fullmatch(folder):
        return False
    if name.endswith(".index.json"):
        return any(name.endswith(f"{suffix}.index.json") for suffix in weights_suffixes)
    is_known = name in _COMPANION_NAMES or PurePosixPath(name).suffix in _COMPANION_SUFFIXES
    return is_known and not _NO_COMPANION.fullmatch(name)
