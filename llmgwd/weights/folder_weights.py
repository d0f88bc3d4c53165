"""Which weights of a folder its engine loads, of all that lie there.

As the field chooses: what the index names (vLLM, and transformers for lack of the one file), else the one file of the
usual name, else all; never unasked a variant (`model.fp16.safetensors`) or Mistral's own format (`consolidated*`)
beside the usual one. Sentence Transformers load each folder that their `modules.json` names in the same way.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile
from llmgwd.weights.gguf_sets import some

Read = Callable[[RepoFile], bytes]
"""The content of a small file. Raises LlmgwError or Cancelled."""

MODULES = "modules.json"


class Format(msgspec.Struct, frozen=True):
    """One way to write weights: how their names end, and what the one file and the index are called."""

    suffix: str
    usual: str
    index: str


SAFETENSORS = Format(".safetensors", "model.safetensors", "model.safetensors.index.json")
PICKLES = tuple(
    Format(suffix, f"pytorch_model{suffix}", f"pytorch_model{suffix}.index.json") for suffix in (".bin", ".pt", ".pth")
)
"""Weights that run code of the repository's author when they are loaded."""

_NO_WEIGHTS = re.compile(r"adapter_model\..*|training_args\..*|(optimizer|scheduler|scaler|rng_state).*")
_VARIANT = re.compile(r"\.(bf16|fp16|fp32|fp64|fp8\w*|int[48]|nf4|[48]bit|(?:non?_)?ema)(?=[-.])", re.IGNORECASE)
_OWN_FORMAT = "consolidated"


class Weights(NamedTuple):
    """Weights and the indexes that name them."""

    files: list[RepoFile]
    indexes: list[RepoFile]


def find_weights(
    files: Sequence[RepoFile],
    formats: Iterable[Format],
    read: Read,
    *,
    among: Collection[str] | None = None,
    like: Collection[str] = (),
) -> Weights:
    """The weights at the top and of each module, in the first of the formats that is there, and the indexes they have.

    among are the paths of which one must be of a set that is taken, if not null; like, those that stable is served
    from, which count before what is usual. Raises LlmgwError when an index names what is not there, when several
    variants are left, and as read.
    """
    found = Weights([], [])
    for folder in module_folders(files, read):
        there = [file for file in files if file.path.rpartition("/")[0] == folder]
        for form in formats:
            in_format = _of_folder(there, form, read, among, like)
            if in_format.files:
                found.files.extend(in_format.files)
                found.indexes.extend(in_format.indexes)
                break
    return found


def module_folders(files: Sequence[RepoFile], read: Read) -> list[str]:
    """The top, "", and the folders of the modules that a repository of Sentence Transformers names, with theirs."""
    listed = decoded(next((file for file in files if file.path == MODULES), None), read)
    entries = listed if isinstance(listed, list) else []
    named = {str(entry.get("path", "")).strip("/") for entry in entries if isinstance(entry, dict)}
    folders = {file.path.rpartition("/")[0] for file in files}
    return ["", *sorted(each for each in folders if each and any(_is_within(each, module) for module in named - {""}))]


def decoded(file: RepoFile | None, read: Read) -> Any:
    """What the JSON file holds; None when there is no such file, or none that an engine could read."""
    if file is None:
        return None
    try:
        return msgspec.json.decode(read(file))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _is_within(folder: str, module: str) -> bool:
    return f"{folder}/".startswith(f"{module}/")


def _of_folder(
    there: list[RepoFile], form: Format, read: Read, among: Collection[str] | None, like: Collection[str]
) -> Weights:
    weights = [file for file in there if file.name.endswith(form.suffix) and not _NO_WEIGHTS.fullmatch(file.name)]
    plain = [file for file in weights if not _variant_of(file) and not file.name.startswith(_OWN_FORMAT)]
    usual = [file for file in plain if file.name == form.usual]
    index = next((file for file in there if file.name == form.index), None)
    indexed = _indexed(there, index, read, may_be_stale=bool(usual)) if index else []
    own = [file for file in weights if file.name.startswith(_OWN_FORMAT)]
    labels = sorted({_variant_of(file) for file in weights} - {""})
    variants = [[file for file in weights if _variant_of(file) == label] for label in labels]
    asked = [
        each
        for each in (indexed, usual, plain, own, *variants)
        if any(among is None or file.path in among for file in each)
    ]
    as_stable = [each for each in asked if any(file.path in like for file in each)]
    chosen = next(iter(as_stable or asked), [])
    if chosen is indexed:
        return Weights(chosen, [index] if index and chosen else [])
    if len(left := [each[0].path for each in asked]) > 1 and not as_stable and chosen in variants:
        message = f"there are several variants of the weights to choose from: {', '.join(left)}"
        raise LlmgwError("weights_ambiguous", message, hint="choose one with --file")
    return Weights([file for file in chosen if among is None or file.path in among], [])


def _variant_of(file: RepoFile) -> str:
    """`fp16` of `model.fp16.safetensors`, empty for none."""
    found = _VARIANT.search(file.name)
    return found[1].lower() if found else ""


def _indexed(there: list[RepoFile], index: RepoFile, read: Read, *, may_be_stale: bool) -> list[RepoFile]:
    """The files of the index. Raises LlmgwError for one that is not there; none when it may be stale."""
    content = decoded(index, read)
    mapped = content.get("weight_map") if isinstance(content, dict) else None
    names = sorted({str(name) for name in mapped.values()}) if isinstance(mapped, dict) else []
    by_name = {file.name: file for file in there}
    missing = [name for name in names if name not in by_name]
    if names and not missing:
        return [by_name[name] for name in names]
    if may_be_stale:
        return []
    if not names:
        raise LlmgwError("weights_index", f"{index.path} is no index of weights", hint="name another revision")
    message = f"the weights are not complete: {some(missing)} missing, of {index.path}"
    raise LlmgwError("weights_shard_missing", message, hint="wait for the upload to end, or name another revision")
