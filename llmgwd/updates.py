"""What is newer on the hub: asked for by people, and every `hub.check_every` by the daemon itself."""

import logging
import random
from functools import partial

import anyio

from llmgwd.domain.catalog import Model
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import Changes, RepoFile, compare
from llmgwd.jobs.services import Services
from llmgwd.protocol.states import EventKind
from llmgwd.protocol.views import UpdateView
from llmgwd.weights.progress import Cancelled

log = logging.getLogger(__name__)


async def check(services: Services, model: Model) -> UpdateView:
    """What the hub has for this model now. A hub that does not answer is said in the view, not raised."""
    origin = model.origin
    if origin.repo is None or origin.revision is None:
        return UpdateView(model.name, None, None, None, newer=False, summary="local weights: there is no repository")
    try:
        ask = partial(services.hub.snapshot, origin.repo, cancelled=services.stopping)
        found = await anyio.to_thread.run_sync(ask)
    except Cancelled:
        return UpdateView(model.name, origin.repo, origin.revision, None, newer=False, summary="the daemon is stopping")
    except LlmgwError as error:
        return UpdateView(model.name, origin.repo, origin.revision, None, newer=False, summary=error.message)
    if found.sha == origin.revision:
        return UpdateView(model.name, origin.repo, origin.revision, found.sha, newer=False, summary="nothing newer")
    changes = _changes(services, model, found.files)
    newer = changes.touch_content
    why = services.store.canaries.why_rejected(model.name, origin.repo, found.sha)
    summary = changes.summary() + (f"; it was rolled back before: {why}" if newer and why else "")
    return UpdateView(model.name, origin.repo, origin.revision, found.sha, newer=newer, summary=summary)


def _changes(services: Services, model: Model, files: tuple[RepoFile, ...]) -> Changes:
    """What differs in the files that the model serves; with nothing on disk to compare with, all of it."""
    origin = model.origin
    assert origin.repo is not None
    assert origin.revision is not None
    known = services.library.recorded(origin.repo, origin.revision)
    old = [file for file in known.files if file.path in origin.files] if known else []
    return compare(old, [file for file in files if file.path in origin.files])


async def keep_checking(services: Services) -> None:
    """Checks every model, an event for each newer revision once, until cancelled."""
    while True:
        # Not all daemons of the world at the same minute.
        await anyio.sleep(services.settings.hub.check_every * random.uniform(0.9, 1.1))  # noqa: S311
        for model in services.store.models.all():
            if model.canary_of is None and model.origin.repo is not None:
                await _note(services, model)


async def _note(services: Services, model: Model) -> None:
    view = await check(services, model)
    if not view.newer or view.latest is None:
        log.info("hub checked model=%s %s", model.name, view.summary)
        return
    if services.store.events.happened(EventKind.NEWER_WEIGHTS, model.name, view.latest):
        return
    event = services.log_event(
        "llmgw", EventKind.NEWER_WEIGHTS, model.name, before=model.origin.short, after=view.latest, why=view.summary
    )
    services.announce(event)
