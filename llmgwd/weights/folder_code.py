"""Whose code an engine would run to load a folder, by what its settings say."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from llmgwd.domain.files import RepoFile
from llmgwd.weights.folder_weights import MODULES, Read, decoded, module_folders

SETTINGS = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
"""Where transformers look for classes that the repository brings."""

_CLASS = re.compile(r"(?:(?P<repo>[^\s]+)--)?(?P<module>[A-Za-z_][\w.]*)\.[A-Z]\w*")


def code_to_run(files: Sequence[RepoFile], read: Read) -> list[str]:
    """Python files, with the repository where it is another: those that an `auto_map` names, there or not, and those of
    the repository that its settings name otherwise (a module of Sentence Transformers, a pipeline). Raises as read.
    """
    paths, found = {file.path for file in files}, set[str]()
    for folder in module_folders(files, read):
        names = (*SETTINGS, MODULES) if not folder else SETTINGS
        for setting in (file for file in files if file.path.rpartition("/")[0] == folder and file.name in names):
            for word, is_mapped in _words(decoded(setting, read)):
                path, repo = _file_of(word)
                if repo and path and is_mapped:
                    found.add(f"{path} of {repo}")
                elif path and (is_mapped or not {path, f"{folder}/{path}"}.isdisjoint(paths)):
                    found.add(f"{folder}/{path}" if folder and path not in paths else path)
    return sorted(found)


def _words(content: Any) -> Iterator[tuple[str, bool]]:
    """All texts of a decoded JSON document, with whether an `auto_map` has them."""
    left = [(content, False)]
    while left:
        value, is_mapped = left.pop()
        if isinstance(value, str):
            yield value, is_mapped
        elif isinstance(value, list):
            left.extend((each, is_mapped) for each in value)
        elif isinstance(value, dict):
            left.extend((each, is_mapped or key == "auto_map") for key, each in value.items())


def _file_of(word: str) -> tuple[str, str]:
    """The Python file, and the other repository, of `modeling_x.XModel`, `ORG/REPO--modeling_x.XModel` or `x.py`."""
    if word.endswith(".py"):
        return word, ""
    named = _CLASS.fullmatch(word)
    return (named["module"].replace(".", "/") + ".py", named["repo"] or "") if named else ("", "")
