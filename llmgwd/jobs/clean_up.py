"""Weights that nothing needs any more are removed, the newest `weights.keep_revisions` of a repository kept (K8)."""

import logging
from collections import Counter
from functools import partial

import anyio

from llmgwd.domain.catalog import Model, Origin
from llmgwd.domain.errors import refused
from llmgwd.domain.files import size_words
from llmgwd.jobs.services import Services
from llmgwd.protocol.messages import Pruned, Weights
from llmgwd.protocol.views import PrunedView, WeightsView
from llmgwd.weights.library import Removed

log = logging.getLogger(__name__)

Revision = tuple[str, str]
"""Repository and commit."""


def kept(models: list[Model], on_disk: list[Revision], keep_revisions: int) -> set[Revision]:
    """What clean-up must leave. `on_disk` is newest first.

    What a model or canary serves always stays, and what a model can go back to; then the newest, up to
    `keep_revisions` of each repository in all. A repository that no model uses keeps nothing.
    """
    own = [model for model in models if model.canary_of is None]
    origins = [each for model in own for each in (model.origin, model.previous, *_adapters(model))]
    needed = {found for origin in origins if origin and (found := _revision(origin))}
    used, keep = {repo for repo, _ in needed}, set(needed)
    for repo, sha in on_disk:
        if repo in used and sum(each[0] == repo for each in keep) < keep_revisions:
            keep.add((repo, sha))
    # A canary's come on top: trying one must not cost the weights that one can go back to.
    return keep | {found for model in models if (found := _revision(model.origin))}


def users(models: list[Model]) -> dict[Revision, tuple[str, ...]]:
    """Who serves from each revision, or did before, in words."""
    found: dict[Revision, tuple[str, ...]] = {}
    for model in models:
        served = ((model.origin, model.name), (model.previous, f"{model.name} before"))
        adapted = ((adapter.origin, f"{model.name}:{adapter.name}") for adapter in model.adapters)
        for origin, words in (*served, *adapted):
            if origin is not None and (revision := _revision(origin)):
                found[revision] = (*found.get(revision, ()), words)
    return found


def _adapters(model: Model) -> list[Origin]:
    return [adapter.origin for adapter in model.adapters]


def _revision(origin: Origin) -> Revision | None:
    return (origin.repo, origin.revision) if origin.repo and origin.revision else None


async def keep_clean(services: Services) -> None:
    """Cleans up whenever it is wished for, until cancelled."""
    while True:
        await services.unneeded.wait()
        services.unneeded = anyio.Event()
        await clean_up(services)


async def clean_up(services: Services) -> None:
    """Removes what is not kept. Does nothing while there is a job: it may have fetched what no row names yet, or may be
    undone to what no row names any more. A job that is submitted meanwhile waits.
    """
    async with services.cleaning:
        # Under the lock: a job that is not seen here has not looked at what is on disk yet.
        if not services.store.jobs.unfinished():
            _tell(await _remove(services, leftovers=False, dry_run=False))


async def prune(services: Services, *, dry_run: bool) -> Pruned:
    """Removes what is not kept, and what fetches that did not end have left. Raises LlmgwError while there is a job."""
    async with services.cleaning:
        if not dry_run and (job := next(iter(services.store.jobs.unfinished()), None)):
            raise refused(
                "job_running",
                f"{job.id} may need weights that nothing refers to yet, so nothing can be removed now",
                hint=f"follow it with `llmgw ctl jobs watch {job.id}`, then ask again",
            )
        removed = await _remove(services, leftovers=True, dry_run=dry_run)
    if not dry_run:
        _tell(removed)
    return Pruned([PrunedView(each.repo, each.sha, each.freed_bytes) for each in removed], dry_run)


async def on_disk(services: Services) -> Weights:
    """What is in the weights folder, and who needs it."""
    return await anyio.to_thread.run_sync(partial(_on_disk, services, services.store.models.all()))


async def kept_now(services: Services) -> set[Revision]:
    """What clean-up would leave at present."""
    return await anyio.to_thread.run_sync(partial(_kept, services, services.store.models.all()))


def _kept(services: Services, models: list[Model]) -> set[Revision]:
    newest_first = [(each.repo, each.sha) for each in services.library.newest_first()]
    return kept(models, newest_first, services.settings.weights.keep_revisions)


async def _remove(services: Services, *, leftovers: bool, dry_run: bool) -> list[Removed]:
    models = services.store.models.all()

    def remove() -> list[Removed]:
        return services.library.prune(_kept(services, models), leftovers=leftovers, dry_run=dry_run)

    return await anyio.to_thread.run_sync(remove)


def _tell(removed: list[Removed]) -> None:
    for each in removed:
        log.info("weights removed repo=%s revision=%s freed=%s", each.repo, each.sha, size_words(each.freed_bytes))


def _on_disk(services: Services, models: list[Model]) -> Weights:
    library, needed, by = services.library, _kept(services, models), users(models)
    going = library.prune(needed, dry_run=True)
    removable = {(each.repo, each.sha) for each in going}
    revisions = library.newest_first()
    sharing = Counter(content for each in revisions for content in {file.content_id for file in each.files})
    views = []
    for each in revisions:
        sizes = {file.content_id: file.size_bytes for file in each.files}
        alone = sum(size for content, size in sizes.items() if sharing[content] == 1)
        key = (each.repo, each.sha)
        views.append(WeightsView(*key, sum(sizes.values()), alone, by.get(key, ()), kept=key not in removable))
    views += [
        WeightsView(None, None, each.freed_bytes, each.freed_bytes, (), kept=False) for each in going if not each.repo
    ]
    return Weights(views, str(library.layout.root), library.free_bytes(), sum(each.freed_bytes for each in going))
