"""The small files of a folder that belong to its weights: tokenizer, configurations, chat template, code."""

import re
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

from llmgwd.domain.files import RepoFile

_SUFFIXES = {".json", ".model", ".jinja", ".tiktoken", ".spm"}
_NAMES = {"vocab.txt", "merges.txt"}
_NOT = re.compile(
    r"\..*|.*\.index(\..*)?\.json|trainer_state\.json|training_args\.json|(all|train|eval)_results\.json"
    r"|quantize_log\.json|model_index\.json|adapter_config\.json"
)
_TEMPLATES = "additional_chat_templates"


def companions(files: Iterable[RepoFile], folders: Collection[str]) -> list[RepoFile]:
    """Those in folders, "" the top. An index is none: it goes with the weights that it is of."""
    return [file for file in files if _is_companion(file, {*folders, _TEMPLATES})]


def python(files: Iterable[RepoFile]) -> list[RepoFile]:
    """All Python of the repository: what is run to load it may import the rest."""
    return [file for file in files if file.path.endswith(".py")]


def _is_companion(file: RepoFile, folders: Collection[str]) -> bool:
    folder, _, name = file.path.rpartition("/")
    is_known = name in _NAMES or PurePosixPath(name).suffix in _SUFFIXES
    return folder in folders and is_known and not _NOT.fullmatch(name)
