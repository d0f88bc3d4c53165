"""The steps that bring weights onto this machine: `repository`, `weights`, `checksums`."""

from collections.abc import Collection
from functools import partial
from pathlib import Path

import msgspec

from llmgwd.domain.catalog import Model, Origin
from llmgwd.domain.differences import what_changed
from llmgwd.domain.errors import LlmgwError, refused, unusable
from llmgwd.domain.files import RepoFile, Snapshot, compare, size_words
from llmgwd.jobs.clean_up import kept_now
from llmgwd.jobs.once_more import once_more
from llmgwd.jobs.run import NothingToDo, Run, Skipped
from llmgwd.protocol.messages import AddModel, StartCanary, Update, WeightsChoice
from llmgwd.protocol.states import JobKind
from llmgwd.weights.choice import choose, entry_file
from llmgwd.weights.fetch import fetch
from llmgwd.weights.gguf_sets import quantisation_of
from llmgwd.weights.local import find_local, hash_local
from llmgwd.weights.offline import find_on_disk, is_offline
from llmgwd.weights.progress import abandonable
from llmgwd.weights.small_files import read_small
from llmgwd.weights.traits import coming_traits, traits_in

_ARGS = {JobKind.ADD: AddModel, JobKind.CANARY: StartCanary, JobKind.UPDATE: Update}


def asked(run: Run) -> AddModel | StartCanary | Update:
    """The request that this job came from."""
    request: AddModel | StartCanary | Update = msgspec.msgpack.decode(run.job.args, type=_ARGS[run.job.kind])
    return request


def other_engine_args(request: AddModel | StartCanary | Update, model: Model) -> bool:
    """Whether a canary is to run with other engine arguments: a change worth a canary on the same weights."""
    return (
        isinstance(request, StartCanary)
        and request.engine_args is not None
        and request.engine_args != model.engine_args
    )


async def repository(run: Run) -> str:
    """Finds the newest revision and what in it differs from what the model serves now."""
    request = asked(run)
    model = None if isinstance(request, AddModel) else run.model
    if request.weights.path is not None:
        local = await run.in_thread(partial(find_local, request.weights.path))
        run.note(origin=Origin(path=local.path, files=local.files, size_bytes=local.size_bytes))
        return Skipped(f"local weights {local.path}, {size_words(local.size_bytes)}")
    repo = request.weights.repo or (model.origin.repo if model else None)
    if repo is None:
        raise no_repository(request.name)
    found = await run.in_thread(partial(_snapshot, run, repo, request.weights.revision))
    chosen = Snapshot(found.repo, found.sha, await run.in_thread(partial(_choose, run, found, request.weights, model)))
    detail = f"{repo} at {found.sha[:7]}" if model is None else await _against(run, model, chosen)
    run.note(snapshot=chosen, origin=_origin(chosen))
    return detail


def _snapshot(run: Run, repo: str, revision: str | None) -> Snapshot:
    if is_offline():
        return find_on_disk(run.services.library, repo, revision)
    return run.services.hub.snapshot(repo, revision, cancelled=run.cancel_flag, notice=run.notice_from_thread)


def _origin(chosen: Snapshot) -> Origin:
    return Origin(
        repo=chosen.repo,
        revision=chosen.sha,
        files=tuple(file.path for file in chosen.files),
        size_bytes=_size_bytes(chosen),
        contents=chosen.files,
    )


def _size_bytes(chosen: Snapshot) -> int:
    return sum(file.size_bytes for file in chosen.files)


def no_repository(name: str) -> LlmgwError:
    return refused(
        "no_repository",
        f"{name} has no repository to take newer weights from",
        hint=f"say where they come from: `llmgw ctl model canary {name} --repo ORG/REPO`, or --path FILE",
    )


def _choose(run: Run, found: Snapshot, wanted: WeightsChoice, model: Model | None) -> tuple[RepoFile, ...]:
    served = model.origin if model and not (wanted.file or wanted.quant) else Origin()
    like, like_quant = what_is_served(served)
    hub, layout = run.services.hub, run.services.library.layout
    read = partial(read_small, hub, layout, found, cancelled=run.cancel_flag, notice=run.notice_from_thread)
    return choose(
        found.files,
        read,
        file=wanted.file,
        quant=wanted.quant,
        like=like,
        like_quant=like_quant,
        allow_unsafe=wanted.allow_unsafe,
    )


def what_is_served(origin: Origin) -> tuple[tuple[str, ...], str | None]:
    """What newer weights are chosen like: paths, and the quantisation that the weights themselves tell.

    Of local weights that tell none, neither by their names, nothing: what they are called means nothing elsewhere.
    """
    quantisation = origin.traits.quantisation if origin.traits else None
    entry = entry_file(origin.files)
    tells = origin.repo or entry is None or quantisation_of(entry) or quantisation
    return (origin.files if tells else ()), quantisation


async def _against(run: Run, model: Model, chosen: Snapshot) -> str:
    """The step's detail. Raises as `_check_worthwhile`."""
    services, coming = run.services, _origin(chosen)
    served = await _with_contents(run, model.origin)
    _check_worthwhile(run, model, served, coming)
    look = partial(coming_traits, services.hub, services.library.layout, chosen, chosen.files, run.cancel_flag)
    traits = await run.in_thread(partial(abandonable, look, run.cancel_flag))
    changed = what_changed(served, msgspec.structs.replace(coming, traits=traits))
    return f"{chosen.repo} at {coming.short}: {changed}"


def _check_worthwhile(run: Run, model: Model, served: Origin, coming: Origin) -> None:
    """Raises NothingToDo when nothing served has changed, LlmgwError for weights that were rolled back (K10)."""
    request, where = asked(run), f"{coming.repo} at {coming.short}" if coming.repo else coming.short
    if not compare(served.contents, coming.contents).touch_content and not other_engine_args(request, model):
        raise NothingToDo(_nothing_newer(model, served, coming, where))
    if not isinstance(request, StartCanary) or request.again:
        return
    why = run.services.store.canaries.why_rejected(model.name, coming)
    if why is not None:
        raise refused(
            "revision_rejected",
            f"{where} was rolled back before: {why}",
            hint=f"to try it once more: `{once_more(request)}`",
        )


def _nothing_newer(model: Model, served: Origin, coming: Origin, where: str) -> str:
    if coming.keys == served.keys:
        return f"nothing newer: {model.name} already serves {where}"
    return f"nothing newer: {where} changes none of the files that {model.name} serves"


async def _with_contents(run: Run, origin: Origin) -> Origin:
    """With the hashes of its files, from disk or else from the hub; without them for local weights never hashed."""
    if origin.contents or origin.repo is None or origin.revision is None:
        return origin
    known = run.services.library.recorded(origin.repo, origin.revision)
    if known is None:
        known = await run.in_thread(partial(_snapshot, run, origin.repo, origin.revision))
    return msgspec.structs.replace(origin, contents=tuple(file for file in known.files if file.path in origin.files))


async def weights(run: Run) -> str:
    """Downloads the chosen files, unless they are on disk; what an interrupted fetch left is gone on with."""
    chosen = run.job.snapshot
    if chosen is None:
        return Skipped("local weights")
    needed = run.services.library.needed_bytes(chosen.files)
    await run.in_thread(partial(_fetch, run, chosen, await kept_now(run.services)))
    total = _size_bytes(chosen)
    names = ", ".join(file.path for file in chosen.files[:2]) + (" …" if len(chosen.files) > 2 else "")
    return f"{names}: {size_words(total)}" + (f", {size_words(needed)} of it new" if 0 < needed < total else "")


def _fetch(run: Run, chosen: Snapshot, kept: Collection[tuple[str, str]]) -> None:
    services = run.services
    with services.space.reserved(run.job.id, chosen.files, services.settings.weights.min_free, keep=kept):
        fetch(
            services.hub,
            chosen,
            chosen.files,
            services.library,
            progress=run.progress_from_thread,
            cancelled=run.cancel_flag,
            notice=run.notice_from_thread,
        )


async def checksums(run: Run) -> str:
    """Makes sure that what is on disk is what the hub says it is, before anything runs it; local weights are hashed."""
    chosen, library = run.job.snapshot, run.services.library
    if chosen is None:
        return await _hash(run)
    await run.in_thread(
        partial(
            library.verify,
            chosen.repo,
            chosen.sha,
            chosen.files,
            progress=run.progress_from_thread,
            cancelled=run.cancel_flag,
        )
    )
    traits = await run.in_thread(partial(traits_in, library.folder(chosen.repo, chosen.sha), chosen.files))
    run.note(origin=msgspec.structs.replace(run.origin, traits=traits))
    count = len(chosen.files)
    return f"{count} file{'s' if count != 1 else ''} as the hub has {'them' if count != 1 else 'it'}"


async def _hash(run: Run) -> str:
    """Notes what local weights are: nobody vouches for a path."""
    request = asked(run)
    assert request.weights.path is not None
    local = await run.in_thread(partial(find_local, request.weights.path))
    contents = await run.in_thread(
        partial(hash_local, local, progress=run.progress_from_thread, cancelled=run.cancel_flag)
    )
    traits = await run.in_thread(partial(traits_in, Path(local.folder), contents))
    found = Origin(path=local.path, files=local.files, size_bytes=local.size_bytes, contents=contents, traits=traits)
    run.note(origin=found)
    if isinstance(request, AddModel):
        return f"sha256 {found.content}"
    served = await _with_contents(run, run.model.origin)
    _check_worthwhile(run, run.model, served, found)
    changed = what_changed(served, found)
    return f"sha256 {found.content}" + (f": {changed}" if changed else "")


def check_choice(weights_choice: WeightsChoice) -> None:
    """Raises LlmgwError unless the parts of a choice go together."""
    if weights_choice.path is not None and any(
        (weights_choice.repo, weights_choice.revision, weights_choice.file, weights_choice.quant)
    ):
        raise unusable(
            "bad_weights", "local weights (--path) cannot be combined with --repo, --revision, --file, --quant"
        )
    if weights_choice.file and weights_choice.quant:
        raise unusable("bad_weights", "give --file or --quant, not both: each chooses the files by itself")
