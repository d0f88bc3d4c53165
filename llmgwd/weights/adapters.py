"""Which files of a repository, or of a path, are a LoRA adapter."""

import re
from collections.abc import Iterable
from pathlib import Path

from llmgwd.domain.errors import LlmgwError, unusable
from llmgwd.domain.files import RepoFile
from llmgwd.protocol.states import WeightsFormat
from llmgwd.weights.gguf_sets import NAMED_AT_MOST, is_gguf, is_projector, quantisation_of
from llmgwd.weights.local import LocalWeights

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PICKLES = ("adapter_model.bin", "adapter_model.pt")
_ADAPTER = re.compile(r"lora|adapter", re.IGNORECASE)
_MOST_EXACT_FIRST = ("F32", "F16", "BF16", "Q8_0")


def choose_adapter(files: Iterable[RepoFile], wanted: WeightsFormat, where: str) -> tuple[RepoFile, ...]:
    """The files of the one adapter that is there. Raises LlmgwError `adapter_…`.

    Of GGUF files those that are called an adapter, if any are; of several quantisations the most exact.
    """
    files = tuple(files)
    peft = _peft(files, where) if wanted is not WeightsFormat.GGUF else ()
    if peft or wanted is WeightsFormat.FOLDER:
        if not peft:
            raise _none(where, f"{CONFIG} with {TENSORS}")
        return peft
    return (_gguf(files, where),)


def find_local_adapter(path: str, wanted: WeightsFormat) -> LocalWeights:
    """The adapter at an absolute path: a GGUF file, or a folder. Raises LlmgwError when it is none that is wanted."""
    given = Path(path)
    if not given.is_absolute():
        raise unusable("adapter_path", f"{path} is not an absolute path", hint="write it from the root")
    try:
        if not given.is_dir():
            if wanted is WeightsFormat.FOLDER:
                raise _none(path, f"a folder with {CONFIG} and {TENSORS}")
            with given.open("rb"):
                return LocalWeights(path, str(given.parent), (given.name,), given.stat().st_size)
        there = [RepoFile(each.name, each.stat().st_size) for each in sorted(given.iterdir()) if each.is_file()]
    except OSError as error:
        hint = "check the path, and that the user that llmgwd runs as may read it"
        raise LlmgwError("adapter_path", f"cannot read {path}: {error.strerror}", hint=hint) from error
    chosen = choose_adapter(there, wanted, path)
    serves_file = len(chosen) == 1 and is_gguf(chosen[0].path)
    entry = given / chosen[0].path if serves_file else given
    return LocalWeights(str(entry), path, tuple(file.path for file in chosen), sum(file.size_bytes for file in chosen))


def _peft(files: tuple[RepoFile, ...], where: str) -> tuple[RepoFile, ...]:
    by_path = {file.path: file for file in files}
    if CONFIG not in by_path:
        return ()
    if TENSORS in by_path:
        return (by_path[CONFIG], by_path[TENSORS])
    if pickled := next((name for name in _PICKLES if name in by_path), None):
        raise LlmgwError(
            "adapter_unsafe",
            f"{where} has its adapter as {pickled}, which runs code when it is loaded",
            hint="use one with safetensors, or convert it and give its path",
        )
    return ()


def _gguf(files: tuple[RepoFile, ...], where: str) -> RepoFile:
    found = [file for file in files if is_gguf(file.path) and not is_projector(file.path)]
    found = [file for file in found if _ADAPTER.search(file.name)] or found
    if not found:
        raise _none(where, "a GGUF file of an adapter")
    for label in _MOST_EXACT_FIRST if len(found) > 1 else ():
        if labelled := [file for file in found if quantisation_of(file.path) == label]:
            found = labelled
            break
    if len(found) > 1:
        names = ", ".join(file.path for file in found[:NAMED_AT_MOST])
        raise LlmgwError(
            "adapter_ambiguous",
            f"{where} has several adapters: {names}" + (" …" if len(found) > NAMED_AT_MOST else ""),
            hint="download the one you want, and give its path",
        )
    return found[0]


def _none(where: str, wanted: str) -> LlmgwError:
    return LlmgwError("adapter_none", f"{where} is no adapter that this engine takes: {wanted} is wanted")
