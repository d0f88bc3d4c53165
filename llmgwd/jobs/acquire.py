"""The steps that bring weights onto this machine: `repository`, `weights`, `checksums`."""

from collections.abc import Collection
from functools import partial
from pathlib import Path

import msgspec

from llmgwd.domain.catalog import Model, Origin
from llmgwd.domain.differences import how_it_runs_differs, only_runs_otherwise, what_changed
from llmgwd.domain.errors import refused
from llmgwd.domain.files import RepoFile, Snapshot, compare, size_words
from llmgwd.engines.templates import find_engine
from llmgwd.jobs.choices import check_fits, engine_of, format_of, no_repository, runs_otherwise, wanted_row
from llmgwd.jobs.clean_up import kept_now
from llmgwd.jobs.once_more import once_more
from llmgwd.jobs.room import check_before_fetch
from llmgwd.jobs.run import NothingToDo, Run, Skipped
from llmgwd.protocol.messages import AddModel, StartCanary, Update, WeightsChoice
from llmgwd.protocol.states import JobKind, WeightsFormat
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


async def repository(run: Run) -> str:
    """Finds the newest revision and what in it differs from what the model serves now."""
    request = asked(run)
    model = None if isinstance(request, AddModel) else run.model
    if request.weights.urls:
        return _elsewhere(run, request.weights, model)
    if request.weights.path is not None:
        local = await run.in_thread(partial(find_local, request.weights.path))
        _note_origin(run, model, Origin(path=local.path, files=local.files, size_bytes=local.size_bytes))
        return Skipped(f"local weights {local.path}, {size_words(local.size_bytes)}")
    repo = request.weights.repo or (model.origin.repo if model else None)
    if repo is None:
        return _as_it_is(run, model)
    found = await run.in_thread(partial(snapshot, run, repo, request.weights.revision))
    wanted = find_engine(engine_of(request, model), run.services.engines).weights
    choice = partial(_choose, run, found, request.weights, model, wanted)
    chosen = Snapshot(found.repo, found.sha, await run.in_thread(choice))
    _note_origin(run, model, origin_of(chosen))
    detail = f"{repo} at {found.sha[:7]}" if model is None else await _against(run, model, chosen)
    run.note(snapshot=chosen)
    return detail


def _note_origin(run: Run, model: Model | None, origin: Origin) -> None:
    """Raises LlmgwError when the engine that was asked for cannot load such weights."""
    check_fits(engine_of(asked(run), model), run.services.engines, origin)
    run.note(origin=origin)


def _elsewhere(run: Run, wanted: WeightsChoice, model: Model | None) -> str:
    coming = Origin(urls=wanted.urls, served_name=wanted.served_name, key_file=wanted.key_file)
    _note_origin(run, model, coming)
    if model is not None:
        _check_worthwhile(run, model, model.origin, coming)
    return Skipped(f"served by others at {coming.short}")


def _as_it_is(run: Run, model: Model | None) -> str:
    """For a canary that runs the model's own local weights otherwise. Raises LlmgwError for anything else."""
    assert model is not None
    if model.origin.path is None or not runs_otherwise(asked(run), model):
        raise no_repository(model)
    _note_origin(run, model, model.origin)
    _check_worthwhile(run, model, model.origin, model.origin)
    return Skipped(f"the same weights, {model.origin.path}")


def snapshot(run: Run, repo: str, revision: str | None) -> Snapshot:
    if is_offline():
        return find_on_disk(run.services.library, repo, revision)
    return run.services.hub.snapshot(repo, revision, cancelled=run.cancel_flag, notice=run.notice_from_thread)


def origin_of(chosen: Snapshot) -> Origin:
    return Origin(
        repo=chosen.repo,
        revision=chosen.sha,
        files=tuple(file.path for file in chosen.files),
        size_bytes=_size_bytes(chosen),
        contents=chosen.files,
    )


def _size_bytes(chosen: Snapshot) -> int:
    return sum(file.size_bytes for file in chosen.files)


def _choose(
    run: Run, found: Snapshot, wanted: WeightsChoice, model: Model | None, takes: WeightsFormat
) -> tuple[RepoFile, ...]:
    served = model.origin if model and not (wanted.file or wanted.quant) else Origin()
    if takes not in (WeightsFormat.ANY, format_of(served)):
        served = Origin()
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
        prefers_folder=takes is WeightsFormat.FOLDER,
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
    """The step's detail; notes what the weights say of themselves. Raises as `_check_worthwhile`."""
    services, coming = run.services, origin_of(chosen)
    served = await _with_contents(run, model.origin)
    _check_worthwhile(run, model, served, coming)
    look = partial(coming_traits, services.hub, services.library.layout, chosen, chosen.files, run.cancel_flag)
    traits = await run.in_thread(partial(abandonable, look, run.cancel_flag))
    run.note(origin=msgspec.structs.replace(coming, traits=traits))
    changed = what_changed(served, run.origin)
    return f"{chosen.repo} at {coming.short}" + (f": {changed}" if changed else "")


def _check_worthwhile(run: Run, model: Model, served: Origin, coming: Origin) -> None:
    """Raises NothingToDo when nothing served has changed, LlmgwError for weights that were rolled back (K10)."""
    request, where = asked(run), f"{coming.repo} at {coming.short}" if coming.repo else coming.short
    if not _differs(served, coming) and not runs_otherwise(request, model):
        raise NothingToDo(_nothing_newer(model, served, coming, where))
    if not isinstance(request, StartCanary) or request.again:
        return
    row = wanted_row(request, model, coming, run.services.engines)
    otherwise = only_runs_otherwise(served, coming, how_it_runs_differs(model, row))
    why = run.services.store.canaries.why_rejected(model.name, coming, otherwise=otherwise)
    if why is not None:
        raise refused(
            "revision_rejected",
            f"{where} was rolled back before: {why}",
            hint=f"to try it once more: `{once_more(request)}`",
        )


def _differs(served: Origin, coming: Origin) -> bool:
    """Whether answers from the coming weights could be others."""
    if served.urls or coming.urls:
        return served.short != coming.short
    return compare(served.contents, coming.contents).touch_content


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
        known = await run.in_thread(partial(snapshot, run, origin.repo, origin.revision))
    return msgspec.structs.replace(origin, contents=tuple(file for file in known.files if file.path in origin.files))


async def weights(run: Run) -> str:
    """Downloads the chosen files, unless they are on disk; what an interrupted fetch left is gone on with."""
    chosen = run.job.snapshot
    await check_before_fetch(run, asked(run))
    if chosen is None:
        return Skipped(_why_nothing_is_fetched(run))
    needed = run.services.library.needed_bytes(chosen.files)
    await run.in_thread(partial(fetch_chosen, run, chosen, await kept_now(run.services)))
    total = _size_bytes(chosen)
    names = ", ".join(file.path for file in chosen.files[:2]) + (" …" if len(chosen.files) > 2 else "")
    return f"{names}: {size_words(total)}" + (f", {size_words(needed)} of it new" if 0 < needed < total else "")


def fetch_chosen(run: Run, chosen: Snapshot, kept: Collection[tuple[str, str]]) -> None:
    """Blocks. Raises LlmgwError when it cannot be fetched or there is no room for it, or Cancelled."""
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


def _why_nothing_is_fetched(run: Run) -> str:
    return "weights of others" if run.origin.urls else "local weights"


async def _hash(run: Run) -> str:
    """Notes what local weights are: nobody vouches for a path."""
    request = asked(run)
    if request.weights.path is None:
        return Skipped(_why_nothing_is_fetched(run))
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
