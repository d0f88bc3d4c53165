"""What weights mean for memory: which contents they are, how large, and what a token of context takes."""

import os
from pathlib import Path

from llmgwd.domain.catalog import Origin
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.estimate import Weighed
from llmgwd.domain.files import RepoFile
from llmgwd.domain.traits import Traits
from llmgwd.weights.choice import entry_file
from llmgwd.weights.local import find_local
from llmgwd.weights.traits import traits_in


def weigh(origin: Origin, path: Path | None) -> Weighed:
    """path is what the engine is given; None while the weights are still to be fetched. Reads what is not on record.

    What cannot be found out is left out: a start is not refused for it.
    """
    files, traits = origin.contents, origin.traits
    contents = [(_content(file), file.size_bytes) for file in files]
    if path is not None and not files:
        files, contents = _on_disk(path)
    if path is not None and (traits is None or traits.cache_values is None):
        traits = traits_in(_folder(path, files), files) if files else None
    traits = traits or Traits()
    is_gguf = entry_file(file.path for file in files) is not None
    return Weighed(tuple(contents), is_gguf, traits.context_length, traits.cache_values)


def _content(file: RepoFile) -> str:
    return f"sha256-{file.sha256}" if file.sha256 else f"{file.blob_id or 'unknown'} {file.path}"


def _on_disk(path: Path) -> tuple[tuple[RepoFile, ...], list[tuple[str, int]]]:
    """The files at a path that were never hashed, told apart by where they lie."""
    try:
        local = find_local(path.absolute())
        found = [(Path(local.folder, name), Path(local.folder, name).stat()) for name in local.files]
    except (OSError, LlmgwError):
        return (), []
    files = tuple(RepoFile(name, of.st_size) for name, (_, of) in zip(local.files, found, strict=True))
    return files, [(f"{os.fspath(file)} {of.st_mtime_ns}", of.st_size) for file, of in found]


def _folder(path: Path, files: tuple[RepoFile, ...]) -> Path:
    entry = entry_file(file.path for file in files)
    return path.parents[entry.count("/")] if entry is not None and not path.is_dir() else path
