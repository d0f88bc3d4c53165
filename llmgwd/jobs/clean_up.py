"""Weights that nothing needs any more are removed, the newest `weights.keep_revisions` of a repository kept (K8)."""

import logging
from functools import partial

import anyio

from llmgwd.domain.catalog import Model, Origin
from llmgwd.domain.files import size_words
from llmgwd.jobs.services import Services
from llmgwd.weights.library import Library, Removed

log = logging.getLogger(__name__)

Revision = tuple[str, str]
"""Repository and commit."""


def kept(models: list[Model], on_disk: list[Revision], keep_revisions: int) -> set[Revision]:
    """What clean-up must leave. `on_disk` is newest first.

    What a model or canary serves always stays; then, up to `keep_revisions` of each repository, what models served
    before, then the newest. A repository that no model uses keeps nothing.
    """
    serving = {found for model in models if model.canary_of is None and (found := _revision(model.origin))}
    previous = [found for model in models if model.previous and (found := _revision(model.previous))]
    keep = set(serving)
    for repo, sha in [*previous, *on_disk]:
        uses = any(each[0] == repo for each in (*serving, *previous))
        if uses and sum(each[0] == repo for each in keep) < keep_revisions:
            keep.add((repo, sha))
    # A canary's come on top: trying one must not cost the weights that one can go back to.
    return keep | {found for model in models if (found := _revision(model.origin))}


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
    undone to what no row names any more.
    """
    if services.store.jobs.unfinished():
        return
    models, keep_revisions = services.store.models.all(), services.settings.weights.keep_revisions
    removed = await anyio.to_thread.run_sync(partial(_prune, services.library, models, keep_revisions))
    for each in removed:
        log.info("weights removed repo=%s revision=%s freed=%s", each.repo, each.sha, size_words(each.freed_bytes))


def _prune(library: Library, models: list[Model], keep_revisions: int) -> list[Removed]:
    found = [(each.repo, each.sha) for each in library.revisions()]
    newest_first = sorted(found, key=lambda each: library.folder(*each).stat().st_mtime, reverse=True)
    return library.prune(kept(models, newest_first, keep_revisions), leftovers=False)
