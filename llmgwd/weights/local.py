"""Weights that the operator keeps: what of a path is served, and what its content hashes to."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from llmgwd.domain.errors import LlmgwError, unusable
from llmgwd.domain.files import RepoFile
from llmgwd.weights.choice import choose, entry_file, with_projector
from llmgwd.weights.content import feed
from llmgwd.weights.gguf_sets import gguf_sets, is_gguf, is_named_like, model_name, projector_sets
from llmgwd.weights.progress import NEVER, CancelFlag, Progress, ignore_progress

OTHER_FORMATS = (".onnx", ".engine", ".plan", ".ckpt", ".h5", ".keras", ".msgpack", ".npz", ".pb", ".tflite")
"""Of weights that neither llama.cpp nor transformers load; a folder that has one is taken whole."""


class LocalWeights(msgspec.Struct, frozen=True):
    """path is absolute and what an engine is given; files are relative to folder."""

    path: str
    folder: str
    files: tuple[str, ...]
    size_bytes: int


def find_local(path: str | Path) -> LocalWeights:
    """The weights at an absolute path: a file, with its other shards and its projector, or a folder with one model.

    In a folder the same files count as in a repository. Raises LlmgwError when they are not there, not readable or not
    one model.
    """
    given = Path(path)
    if not given.is_absolute():
        raise unusable(
            "weights_path", f"{path} is not an absolute path", hint="write it from the root: /srv/model.gguf"
        )
    try:
        folder, paths = _local_files(given)
    except OSError as error:
        raise _unreadable(error, given) from error
    entry = entry_file(paths)
    serves_folder = given.is_dir() and entry is None
    size_bytes = sum((folder / name).stat().st_size for name in paths)
    path = given if serves_folder or entry is None else folder / entry
    return LocalWeights(str(path), str(folder), paths, size_bytes)


def hash_local(
    local: LocalWeights, *, progress: Progress = ignore_progress, cancelled: CancelFlag = NEVER
) -> tuple[RepoFile, ...]:
    """The files with their sha256. Raises LlmgwError when one cannot be read or changes meanwhile, or Cancelled."""
    hashed: list[RepoFile] = []
    for name in sorted(local.files):
        digest, before, path = hashlib.sha256(), sum(file.size_bytes for file in hashed), Path(local.folder, name)

        def report(count: int, before: int = before) -> None:
            progress(min(before + count, local.size_bytes), local.size_bytes)

        try:
            began = path.stat()
            size_bytes = feed(digest, path, cancelled, report)
            ended = path.stat()
        except OSError as error:
            raise _unreadable(error, path) from error
        if (began.st_size, began.st_mtime_ns) != (size_bytes, ended.st_mtime_ns):
            message = f"{path} was written to while it was read"
            raise LlmgwError("weights_changing", message, hint="wait until it is whole, then ask again")
        hashed.append(RepoFile(name, size_bytes, sha256=digest.hexdigest()))
    progress(local.size_bytes, local.size_bytes)
    return tuple(hashed)


def _local_files(given: Path) -> tuple[Path, tuple[str, ...]]:
    """The folder and, relative to it, what of it is served; all of it can be opened. Raises OSError or LlmgwError."""
    if given.is_dir():
        folder = given
        chosen = _choice_in_folder(folder, _listed(folder, (path for path in folder.rglob("*") if path.is_file())))
    else:
        folder = given.parent
        chosen = _with_what_belongs_to_it(_listed(folder, [given])[0], folder) if is_gguf(given.name) else [given.name]
    for name in chosen:
        os.close(os.open(folder / name, os.O_RDONLY))
    return folder, tuple(chosen)


def _listed(folder: Path, paths: Iterable[Path]) -> list[RepoFile]:
    return [RepoFile(path.relative_to(folder).as_posix(), path.stat().st_size) for path in sorted(paths)]


def _with_what_belongs_to_it(given: RepoFile, folder: Path) -> list[str]:
    """The set of a shard, and the model's projector: one named like it, or any where the folder has no other model."""
    there = _listed(folder, folder.glob("*.gguf"))
    sets = gguf_sets(there)
    model = next((one for one in sets if given in one.files), None)
    if model is None:
        return [given.path]
    if model.missing.count:
        message = f"beside {folder / given.path} there is no {model.missing.paths[0]}"
        raise LlmgwError("weights_shard_missing", message, hint="put all files of the set into one folder")
    is_alone = len({model_name(one.stem) for one in sets}) == 1
    own = [one for one in projector_sets(there) if is_alone or is_named_like(one, model)]
    try:
        return [file.path for file in with_projector(model, own)]
    except LlmgwError as error:
        hint = f"leave one in {folder}, or name a folder that has only the model and its own"
        raise LlmgwError(error.code, error.message, hint=hint) from error


def _choice_in_folder(folder: Path, there: list[RepoFile]) -> list[str]:
    def read(file: RepoFile) -> bytes:
        return (folder / file.path).read_bytes()

    try:
        return [file.path for file in choose(there, read, allow_unsafe=True)]  # the operator put them there
    except LlmgwError as error:
        if error.code != "weights_none":
            hint = f"name one file: --path {folder}/FILE.gguf"
            raise LlmgwError(error.code, f"{folder}: {error.message}", hint=hint) from error
    if any(file.name.lower().endswith(OTHER_FORMATS) for file in there):  # for an engine of its own
        return [file.path for file in there]
    message = f"{folder} has no weights: looked for .gguf, .safetensors, .bin, .pt, .pth, {', '.join(OTHER_FORMATS)}"
    raise LlmgwError("weights_none", message, hint=f"check the path; a file of any kind can be named: {folder}/FILE")


def _unreadable(error: OSError, path: Path) -> LlmgwError:
    hint = "check the path, and that the user that llmgwd runs as may read it"
    return LlmgwError("weights_path", f"cannot read {error.filename or path}: {error.strerror}", hint=hint)
