"""The steps that bring weights onto this machine: `repository`, `weights`, `checksums`."""

from functools import partial

import msgspec

from llmgwd.domain.catalog import Model, Origin
from llmgwd.domain.errors import LlmgwError, refused, unusable
from llmgwd.domain.files import Changes, RepoFile, Snapshot, compare, size_words
from llmgwd.jobs.clean_up import kept_now
from llmgwd.jobs.run import NothingToDo, Run, Skipped
from llmgwd.protocol.messages import AddModel, StartCanary, Update, WeightsChoice
from llmgwd.protocol.states import JobKind
from llmgwd.weights.choice import choose
from llmgwd.weights.fetch import fetch
from llmgwd.weights.library import local_origin

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
    store = run.services.store
    run.model = None if isinstance(request, AddModel) else store.models.get(request.name)
    if request.weights.path is not None:
        local = await run.in_thread(partial(local_origin, request.weights.path))
        run.origin = Origin(path=local.path, files=local.files, size_bytes=local.size_bytes)
        return Skipped(f"local weights {local.path}, {size_words(local.size_bytes)}")
    repo = request.weights.repo or (run.model.origin.repo if run.model else None)
    if repo is None:
        raise no_repository(request.name)
    hub = run.services.hub
    run.snapshot = await run.in_thread(
        partial(hub.snapshot, repo, request.weights.revision, cancelled=run.cancel_flag, notice=run.notice_from_thread)
    )
    run.files = _choose(run.snapshot, request.weights, run.model)
    if run.model is None:
        return f"{repo} at {run.snapshot.sha[:7]}"
    return await _against(run, run.model, run.snapshot, request)


def no_repository(name: str) -> LlmgwError:
    return refused(
        "no_repository",
        f"{name} has no repository to take newer weights from",
        hint=f"say where they come from: `llmgw ctl model canary {name} --repo ORG/REPO`, or --path FILE",
    )


def _choose(snapshot: Snapshot, wanted: WeightsChoice, model: Model | None) -> tuple[RepoFile, ...]:
    like = model.origin.files if model and model.origin.repo and not (wanted.file or wanted.quant) else None
    return choose(snapshot.files, file=wanted.file, quant=wanted.quant, like=like, allow_unsafe=wanted.allow_unsafe)


async def _against(run: Run, model: Model, snapshot: Snapshot, request: AddModel | StartCanary | Update) -> str:
    """The step's detail. Raises NothingToDo when nothing served has changed, LlmgwError for a rejected revision."""
    where = f"{snapshot.repo} at {snapshot.sha[:7]}"
    changes = compare(await _files_of(run, model.origin), run.files)
    if not changes.touch_content and not other_engine_args(request, model):
        raise NothingToDo(_nothing_newer(model, snapshot))
    again = not isinstance(request, StartCanary) or request.again
    why = run.services.store.canaries.why_rejected(model.name, snapshot.repo, snapshot.sha)
    if why is not None and not again:
        raise refused(
            "revision_rejected",
            f"{where} was rolled back before: {why}",
            hint=f"to try it once more: `llmgw ctl model canary {model.name} --again`",
        )
    return f"{where}: {_words(changes)}"


def _words(changes: Changes) -> str:
    return changes.summary() if changes.touch_content else "the same weights"


def _nothing_newer(model: Model, snapshot: Snapshot) -> str:
    if snapshot.sha == model.origin.revision:
        return f"nothing newer: {model.name} already serves {snapshot.repo} at {snapshot.sha[:7]}"
    return f"nothing newer: {snapshot.repo} at {snapshot.sha[:7]} changes none of the files that {model.name} serves"


async def _files_of(run: Run, origin: Origin) -> tuple[RepoFile, ...]:
    """The model's present files with their hashes, from disk or else from the hub; none for local weights."""
    if origin.repo is None or origin.revision is None:
        return ()
    known = run.services.library.recorded(origin.repo, origin.revision)
    if known is None:
        known = await run.in_thread(
            partial(run.services.hub.snapshot, origin.repo, origin.revision, cancelled=run.cancel_flag)
        )
    return tuple(file for file in known.files if file.path in origin.files)


async def weights(run: Run) -> str:
    """Downloads the chosen files, unless they are on disk."""
    if run.snapshot is None:
        return Skipped("local weights")
    library = run.services.library
    needed = library.needed_bytes(run.files)
    min_free, kept = run.services.settings.weights.min_free, await kept_now(run.services)
    await run.in_thread(partial(library.check_space, run.files, min_free, keep=kept))
    await run.in_thread(
        partial(
            fetch,
            run.services.hub,
            run.snapshot,
            run.files,
            library,
            progress=run.progress_from_thread,
            cancelled=run.cancel_flag,
            notice=run.notice_from_thread,
        )
    )
    total = sum(file.size_bytes for file in run.files)
    run.origin = Origin(
        repo=run.snapshot.repo,
        revision=run.snapshot.sha,
        files=tuple(file.path for file in run.files),
        size_bytes=total,
    )
    names = ", ".join(file.path for file in run.files[:2]) + (" …" if len(run.files) > 2 else "")
    return f"{names}: {size_words(total)}" + (f", {size_words(needed)} of it new" if 0 < needed < total else "")


async def checksums(run: Run) -> str:
    """Makes sure that what is on disk is what the hub says it is, before anything runs it."""
    if run.snapshot is None:
        return Skipped("local weights")
    await run.in_thread(
        partial(
            run.services.library.verify,
            run.snapshot.repo,
            run.snapshot.sha,
            run.files,
            progress=run.progress_from_thread,
            cancelled=run.cancel_flag,
        )
    )
    count = len(run.files)
    return f"{count} file{'s' if count != 1 else ''} as the hub has {'them' if count != 1 else 'it'}"


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
