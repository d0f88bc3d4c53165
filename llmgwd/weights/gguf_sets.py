"""GGUF files by their names: which of them make one model, at which quantisation, and whether the set is whole."""

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

import msgspec

from llmgwd.domain.files import RepoFile, size_words

_SHARD = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<total>\d{5})\.(?:gguf|safetensors|bin)", re.IGNORECASE)
_QUANTISATION = re.compile(
    r"(?<![A-Za-z0-9])"
    r"((?:UD-)?(?:I?Q\d+(?:_(?:\d|K|XXS|XS|S|M|L|XL|NL))*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4)|BF16|F16|F32|FP16|FP32)"
    r"(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"ggml-vocab|(?<![a-z])lora(?![a-z])", re.IGNORECASE)
NAMED_AT_MOST = 3
_SAME = {"FP16": "F16", "FP32": "F32"}


class Missing(msgspec.Struct, frozen=True):
    """Shards that the names of others announce (`-00001-of-00003`) but that are not there; paths are the first."""

    count: int = 0
    paths: tuple[str, ...] = ()


class GgufSet(msgspec.Struct, frozen=True):
    """The files of one model at one quantisation; files are in the order of their shards.

    stem is what their paths have in common; quantisation is upper case, None when the names do not tell.
    """

    stem: str
    quantisation: str | None
    files: tuple[RepoFile, ...]
    missing: Missing = Missing()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def in_words(self) -> str:
        shards = f", {len(self.files)} files" if len(self.files) > 1 or self.missing.count else ""
        lacks = f", {self.missing.count} missing" if self.missing.count else ""
        label = self.quantisation or self.stem
        return f"{label} ({size_words(self.size_bytes)}{shards}{lacks})"


def gguf_sets(files: Iterable[RepoFile], named: Collection[str] = ()) -> list[GgufSet]:
    """All models of a repository, by stem. Projectors are none, nor what is called an adapter or an importance matrix,
    but for the paths in named: people said that they are.
    """
    models = (file for file in files if is_gguf(file.path) and not is_projector(file.path))
    return _sets(file for file in models if file.path in named or not is_no_model(file.path))


def is_no_model(path: str) -> bool:
    """Whether this is called an adapter, a vocabulary or an importance matrix (the models made with one are called by
    it too, and by their quantisation).
    """
    name = path.rpartition("/")[2]
    is_matrix = "imatrix" in name.lower() and quantisation_of(name) is None
    return is_gguf(path) and (is_matrix or bool(_NO_MODEL.search(name)))


def projector_sets(files: Iterable[RepoFile]) -> list[GgufSet]:
    """All projectors of a repository, by stem."""
    return _sets(file for file in files if is_projector(file.path))


def model_name(stem: str) -> str:
    """What a name tells of the model, in lower case: `a-4b` of `sub/a-4B-Q8_0` and of its `sub/mmproj-a-4B-f16`."""
    name = _QUANTISATION.sub("", stem.rpartition("/")[2]).lower()
    return re.sub(r"[-_.]?mmproj[-_.]?", "-", name).strip("-_.")


def is_named_like(projector: GgufSet, model: GgufSet) -> bool:
    """Whether the name of a projector says that it is this model's."""
    name = model_name(projector.stem)
    return bool(name) and model_name(model.stem).startswith(name)


def _sets(files: Iterable[RepoFile]) -> list[GgufSet]:
    by_set: dict[tuple[str, int | None], list[RepoFile]] = {}
    for file in files:
        by_set.setdefault(_set_of(file.path), []).append(file)
    return [_make(stem, total, found) for (stem, total), found in sorted(by_set.items(), key=lambda item: item[0][0])]


def is_gguf(path: str) -> bool:
    return path.lower().endswith(".gguf")


def is_projector(path: str) -> bool:
    return is_gguf(path) and "mmproj" in path.rpartition("/")[2].lower()


def is_first_of_set(path: str) -> bool:
    shard = _SHARD.fullmatch(path)
    return shard is None or int(shard["index"]) == 1


def quantisation_of(path: str) -> str | None:
    """`Q4_K_M` of `Qwen3-8B-Q4_K_M-00001-of-00002.gguf`, or of its folder; None when neither tells."""
    shard = _SHARD.fullmatch(path)
    folder, _, name = (shard["stem"] if shard else re.sub(r"\.gguf$", "", path, flags=re.IGNORECASE)).rpartition("/")
    for part in (name, *reversed(folder.split("/"))):
        if found := _QUANTISATION.findall(part):
            label = str(found[-1]).upper()
            return _SAME.get(label, label)
    return None


def missing_shards(files: Iterable[RepoFile]) -> Missing:
    """Of all sets among files. They are counted, not listed: a name can announce 99999 of them."""
    there: dict[tuple[str, str, str], set[int]] = {}
    for file in sorted(files, key=lambda file: file.path):
        if shard := _SHARD.fullmatch(file.path):
            ending = file.path.rpartition(".")[2]
            there.setdefault((shard["stem"], shard["total"], ending), set()).add(int(shard["index"]))
    count, paths = 0, list[str]()
    for (stem, total, ending), indices in there.items():
        wanted = range(1, int(total) + 1)
        count += len(wanted) - sum(index in wanted for index in indices)
        lacking = (f"{stem}-{index:05}-of-{total}.{ending}" for index in wanted if index not in indices)
        paths += islice(lacking, NAMED_AT_MOST - len(paths))
    return Missing(count, tuple(paths))


def some(paths: Sequence[str], count: int | None = None) -> str:
    """The first few of them. count: how many there are, when paths are only the first."""
    named = paths[:NAMED_AT_MOST]
    left = (len(paths) if count is None else count) - len(named)
    return ", ".join(named) + (f" and {left} more" if left > 0 else "")


def _set_of(path: str) -> tuple[str, int | None]:
    shard = _SHARD.fullmatch(path)
    return (shard["stem"], int(shard["total"])) if shard else (path[: -len(".gguf")], None)


def _make(stem: str, total: int | None, files: list[RepoFile]) -> GgufSet:
    ordered = tuple(sorted(files, key=lambda file: file.path))
    missing = missing_shards(ordered) if total is not None else Missing()
    return GgufSet(stem, quantisation_of(ordered[0].path), ordered, missing)
