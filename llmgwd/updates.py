"""What is newer on the hub: asked for by people, and every `hub.check_every` by the daemon itself."""

import logging
import random
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import partial

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from llmgwd.domain.catalog import Model, Origin
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile, Snapshot, compare
from llmgwd.jobs.acquire import what_is_served
from llmgwd.jobs.services import Services
from llmgwd.protocol.states import EventKind
from llmgwd.protocol.views import UpdateView
from llmgwd.weights.choice import choose
from llmgwd.weights.progress import Cancelled
from llmgwd.weights.small_files import read_small

log = logging.getLogger(__name__)

CHECKS_AT_ONCE = 8
CHECK_WITHIN_S = 60.0
"""A hub that hangs is tried again for longer; who asks is not to wait for that."""


async def check(services: Services, model: Model) -> UpdateView:
    """What the hub has for this model now. A hub that does not answer is said in the view, not raised."""
    origin, latest = model.origin, None
    if origin.repo is None or origin.revision is None:
        what = "served by others" if origin.urls else "local weights"
        return UpdateView(model.name, None, None, None, newer=False, summary=f"{what}: there is no repository")
    try:
        ask = partial(services.hub.snapshot, origin.repo, cancelled=services.stopping)
        found = await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)
        latest = found.sha
        newer, summary = await _newer(services, model, found)
    except Cancelled:
        newer, summary = False, "the daemon is stopping"
    except LlmgwError as error:
        newer, summary = False, error.message
    return UpdateView(model.name, origin.repo, origin.revision, latest, newer=newer, summary=summary)


async def check_all(
    services: Services, models: Sequence[Model], found: MemoryObjectSendStream[UpdateView] | None = None
) -> list[UpdateView]:
    """As `check` of each, in this order, a few at a time and none for longer than CHECK_WITHIN_S; found is told of each
    as it comes, and closed.
    """
    views, room = dict[str, UpdateView](), anyio.CapacityLimiter(CHECKS_AT_ONCE)

    async def ask(model: Model) -> None:
        async with room:
            with anyio.move_on_after(CHECK_WITHIN_S) as limit:
                views[model.name] = await _check_or_say(services, model)
        if limit.cancelled_caught:
            views[model.name] = _no_answer(model, f"the hub has not answered within {CHECK_WITHIN_S:g} s")
        if found is not None:
            await found.send(views[model.name])

    async with found if found is not None else nullcontext(), anyio.create_task_group() as tasks:
        for model in models:
            tasks.start_soon(ask, model)
    return [views[model.name] for model in models]


async def _check_or_say(services: Services, model: Model) -> UpdateView:
    try:
        return await check(services, model)
    except Exception as error:
        log.exception("hub check failed unexpectedly model=%s", model.name)
        return _no_answer(model, f"{type(error).__name__}: {error}")


def _no_answer(model: Model, why: str) -> UpdateView:
    return UpdateView(model.name, model.origin.repo, model.origin.revision, None, newer=False, summary=why)


async def _newer(services: Services, model: Model, found: Snapshot) -> tuple[bool, str]:
    """Whether an update would change anything, and what. Raises LlmgwError when it would be refused."""
    if found.sha == model.origin.revision:
        return False, "nothing newer"
    # The unsafe are allowed: an update says what it refuses, and here nothing is fetched.
    read = partial(read_small, services.hub, services.library.layout, found, cancelled=services.stopping)
    like, like_quant = what_is_served(model.origin)
    look = partial(choose, found.files, read, like=like, like_quant=like_quant, allow_unsafe=True)
    chosen = await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
    changes = compare(_contents(services, model.origin), chosen)
    why = services.store.canaries.why_rejected(model.name, Origin(repo=found.repo, revision=found.sha, contents=chosen))
    if changes.touch_content and why:
        return True, f"{changes.summary()}; it was rolled back before: {why}"
    return changes.touch_content, changes.summary()


def _contents(services: Services, origin: Origin) -> tuple[RepoFile, ...]:
    """The files that are served; with nothing known of them, none."""
    if origin.contents or origin.repo is None or origin.revision is None:
        return origin.contents
    known = services.library.recorded(origin.repo, origin.revision)
    return tuple(file for file in known.files if file.path in origin.files) if known else ()


def pause_s(every_s: float, chance: float) -> float:
    """Up to a tenth shorter or longer, by a chance of 0–1: not all daemons of the world ask at the same minute."""
    return every_s * (0.9 + 0.2 * chance)


async def keep_checking(services: Services) -> None:
    """Checks every model, an event for each newer revision once, until cancelled."""
    while True:
        await anyio.sleep(pause_s(services.settings.hub.check_every, random.random()))  # noqa: S311
        await note_newer(services, services.store.models.all())


async def note_newer(services: Services, models: Iterable[Model]) -> None:
    """Checks each of them. What goes wrong with one does not keep the others from it."""
    for model in models:
        if model.canary_of is None and model.origin.repo is not None:
            try:
                await _note(services, model)
            except Exception:
                log.exception("hub check failed unexpectedly model=%s", model.name)


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
