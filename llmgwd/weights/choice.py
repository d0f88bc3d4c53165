"""Which files of a revision are served: one quantisation, whole, and nothing beside it."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import takewhile

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile
from llmgwd.weights.folder_code import code_to_run
from llmgwd.weights.folder_files import companions, python
from llmgwd.weights.folder_weights import PICKLES, SAFETENSORS, Read, find_weights, module_folders
from llmgwd.weights.gguf_sets import (
    GgufSet,
    gguf_sets,
    is_first_of_set,
    is_gguf,
    is_no_model,
    is_projector,
    missing_shards,
    model_name,
    projector_sets,
    quantisation_of,
    some,
)

DEFAULT_QUANTISATIONS = ("Q4_K_M", "Q8_0")
PROJECTOR_QUANTISATIONS = ("F16", "BF16", "Q8_0", "F32")
LISTED_AT_MOST = 30
TRUSTED = "if you trust its author, add --allow-unsafe"


def choose(
    files: Iterable[RepoFile],
    read: Read,
    *,
    file: str | None = None,
    quant: str | None = None,
    like: Sequence[str] | None = None,
    like_quant: str | None = None,
    allow_unsafe: bool = False,
    prefers_folder: bool = False,
) -> tuple[RepoFile, ...]:
    """The files to fetch and serve, by path.

    file is a glob (of the name, or with a slash of the path) and quant a quantisation; like holds the paths that
    stable is served from, and then its quantisation is wanted, by its name, else like_quant. With none of them: Q4_K_M,
    Q8_0, or the only one. A glob that meets one shard means its whole set. prefers_folder: where there are safetensors
    beside GGUF files, and nothing says which, these. allow_unsafe also takes weights that run code when loaded. read
    gives the settings and indexes of a folder. Raises LlmgwError `weights_…`, which lists what there is, and as read.
    """
    files = tuple(files)
    like = like or ()
    sets, projectors = gguf_sets(files, like), projector_sets(files)
    wants_folder = bool(like) and not any(map(is_gguf, like))
    if prefers_folder and not like:
        wants_folder = bool(find_weights(files, (SAFETENSORS,), read)[0])
    if file is not None:
        is_of_gguf = any(is_gguf(found.path) for found in _matching(files, file))
        chosen = _gguf_by_glob(files, sets, file) if is_of_gguf else _folder(files, file, read, like, allow_unsafe)
    elif quant is not None:
        chosen = with_projector(_whole(_by_quantisation(files, sets, quant), sets), projectors, like)
    elif sets and not wants_folder:
        chosen = with_projector(_whole(_by_habit(sets, like, like_quant), sets), projectors, like)
    else:
        chosen = _folder(files, None, read, like, allow_unsafe)
    return tuple(sorted(chosen, key=lambda found: found.path))


def entry_file(paths: Iterable[str]) -> str | None:
    """Which of the chosen paths an engine is given: the first shard of a GGUF set. None: the folder."""
    models = sorted(path for path in paths if is_gguf(path) and not is_projector(path))
    return next(filter(is_first_of_set, models), None)


def projector_file(paths: Iterable[str]) -> str | None:
    """Which of the chosen paths lets the model see images, if any."""
    return next((path for path in sorted(paths) if is_projector(path)), None)


def with_projector(model: GgufSet, projectors: list[GgufSet], like: Sequence[str] = ()) -> list[RepoFile]:
    """The model and its projector with all its shards, if there is any.

    Stable's; else of those in the model's folder, or of all, those with the name most like the model's, and of these
    the most exact of a reasonable size. Raises LlmgwError when several are left.
    """
    served = projector_file(like)
    found = [one for one in projectors if one.files[0].path == served] or _nearest(projectors, model.stem)
    usual = [[one for one in found if one.quantisation == label] for label in PROJECTOR_QUANTISATIONS]
    found = next(filter(None, usual), found)
    if len(found) > 1:
        names = some([one.files[0].path for one in found])
        hint = "name the model and its projector with --file"
        raise LlmgwError("weights_ambiguous", f"{model.stem} has several projectors: {names}", hint=hint)
    for one in found:
        _check_whole(one, projectors)
    return [*model.files, *(file for one in found for file in one.files)]


def _by_habit(sets: list[GgufSet], like: Sequence[str], like_quant: str | None) -> list[GgufSet]:
    served = entry_file(like)
    if served is not None:
        return _as_served(sets, served, quantisation_of(served) or like_quant)
    for quantisation in DEFAULT_QUANTISATIONS:
        if found := [one for one in sets if one.quantisation == quantisation]:
            return found
    return sets


def _as_served(sets: list[GgufSet], served: str, quantisation: str | None) -> list[GgufSet]:
    """The sets of stable's quantisation; of several, or when that is not known, the one of the same name."""
    found = [one for one in sets if one.quantisation == quantisation] if quantisation else []
    stem = gguf_sets([RepoFile(served, 0)], named=[served])[0].stem
    named_alike = [one for one in found or sets if one.stem == stem]
    if named_alike or found:
        return named_alike or found
    if quantisation is None and len(sets) == 1:
        return sets
    label = quantisation or served
    raise _refusal("weights_no_such", f"this revision has no {label}, which stable is served from", sets)


def _by_quantisation(files: Sequence[RepoFile], sets: list[GgufSet], quant: str) -> list[GgufSet]:
    """`Q4_K_XL` also finds `UD-Q4_K_XL` when no other is called so."""
    label = quant.upper()
    for wanted in (label, f"UD-{label}"):
        if found := [one for one in sets if one.quantisation == wanted]:
            return found
    raise _refusal("weights_no_such", f"there is no quantisation {quant}", sets, _without_choice(files))


def _gguf_by_glob(files: Sequence[RepoFile], sets: list[GgufSet], glob: str) -> list[RepoFile]:
    matched = {found.path for found in _matching(files, glob)}
    models = [one for one in sets if any(file.path in matched for file in one.files)] or gguf_sets(
        [file for file in files if file.path in matched], named=matched
    )
    if not models:
        raise _refusal("weights_no_such", f"{glob} matches no model, only a projector", sets)
    chosen = _whole(models, sets, f"{glob} matches")
    projectors = [one for one in projector_sets(files) if any(file.path in matched for file in one.files)]
    if len(projectors) > 1:
        names = ", ".join(one.files[0].path for one in projectors)
        raise LlmgwError("weights_ambiguous", f"{glob} matches several projectors: {names}", hint="narrow --file")
    if not projectors:
        return with_projector(chosen, projector_sets(files))
    _check_whole(projectors[0], sets)
    return [*chosen.files, *projectors[0].files]


def _whole(found: list[GgufSet], sets: list[GgufSet], who: str = "there are") -> GgufSet:
    """The only set of them, if it is complete."""
    if len(found) > 1:
        listed = ", ".join(f"{one.stem}: {one.in_words()}" for one in found[:LISTED_AT_MOST])
        hint = "choose one with --quant or --file"
        raise LlmgwError("weights_ambiguous", f"{who} several models to choose from: {listed}", hint=hint)
    (only,) = found
    _check_whole(only, sets)
    return only


def _check_whole(only: GgufSet, sets: list[GgufSet]) -> None:
    if only.missing.count:
        message = f"{only.quantisation or only.stem} lacks {some(only.missing.paths, only.missing.count)}"
        raise _refusal("weights_shard_missing", message, [one for one in sets if one is not only])


def _nearest(projectors: list[GgufSet], stem: str) -> list[GgufSet]:
    folder, _, name = stem.rpartition("/")
    among = [one for one in projectors if one.stem.rpartition("/")[0] == folder] or projectors
    likeness = [_shared_start(model_name(one.stem), name.lower()) for one in among]
    return [one for one, length in zip(among, likeness, strict=True) if length == max(likeness)]


def _shared_start(one: str, other: str) -> int:
    """In characters."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _folder(
    files: Sequence[RepoFile], glob: str | None, read: Read, like: Sequence[str], allow_unsafe: bool
) -> list[RepoFile]:
    among = {found.path for found in _matching(files, glob)} if glob is not None else None
    weights, indexes = find_weights(files, (SAFETENSORS, *PICKLES), read, among=among, like=like)
    if not weights:
        what = f"{glob} matches no weights" if glob is not None else "the repository has no weights that can be served"
        if set_aside := [file.path for file in files if is_no_model(file.path)]:
            message = f"{what}, only what is named like an adapter or an importance matrix: {some(set_aside)}"
            raise LlmgwError("weights_none", message, hint=f"if that is a model, name it: --file '{set_aside[0]}'")
        raise _refusal("weights_none", what, gguf_sets(files), _without_choice(files))
    pickles = [file.path for file in weights if not file.name.endswith(SAFETENSORS.suffix)]
    if pickles and not allow_unsafe:
        message = f"{some(pickles)}: weights in this format run code when they are loaded"
        raise LlmgwError("weights_unsafe", message, hint=f"use a repository with safetensors or GGUF; {TRUSTED}")
    if (missing := missing_shards(weights)).count:
        message = f"the weights are not complete: {some(missing.paths, missing.count)} missing"
        raise LlmgwError("weights_shard_missing", message, hint="wait for the upload to end, or name another revision")
    code = code_to_run(files, read)
    if code and not allow_unsafe:
        message = f"the repository brings code that is run to load it: {some(code)}"
        raise LlmgwError("weights_unsafe", message, hint=f"read that code at this revision; {TRUSTED}")
    imported = python(files) if code else []
    return [*weights, *indexes, *companions(files, module_folders(files, read)), *imported]


def _matching(files: Sequence[RepoFile], glob: str) -> list[RepoFile]:
    found = [file for file in files if fnmatchcase(file.path if "/" in glob else file.name, glob)]
    if not found:
        raise _refusal("weights_no_such", f"{glob} matches no file", gguf_sets(files), _without_choice(files))
    return found


def _refusal(
    code: str, message: str, sets: Sequence[GgufSet], otherwise: str = "name another repository or revision"
) -> LlmgwError:
    """With what there is, or, with nothing to choose from, what to do `otherwise`."""
    listed = ", ".join(one.in_words() for one in sets[:LISTED_AT_MOST])
    there_is = f"; there is: {listed}" if listed else ""
    hint = "choose with --quant or --file" if listed else otherwise
    return LlmgwError(code, message + there_is, hint=hint)


def _without_choice(files: Sequence[RepoFile]) -> str:
    """The way on where --file or --quant asks for one of several and there is no GGUF to choose from."""
    if any(file.name.endswith(SAFETENSORS.suffix) for file in files):
        return "leave out --file and --quant: the repository is served whole, from its safetensors"
    return "name another repository or revision"
