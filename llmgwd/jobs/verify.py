"""Weights on disk hashed again, for people who doubt them: what is damaged, and fetching that again."""

import threading
from collections.abc import AsyncGenerator, Callable
from functools import partial

import anyio

from llmgwd.domain.catalog import Model
from llmgwd.domain.errors import LlmgwError, unknown
from llmgwd.domain.files import Snapshot
from llmgwd.jobs.clean_up import users
from llmgwd.jobs.services import Services
from llmgwd.protocol.messages import Verified, VerifyProgress
from llmgwd.protocol.views import ProgressView, VerifiedView
from llmgwd.weights.fetch import fetch
from llmgwd.weights.progress import in_background

LOOK_EVERY_S = 0.05
TELL_EVERY_S = 2.0
SHORTEST_PREFIX = 4


async def verify(services: Services, of: str | None, *, repair: bool) -> AsyncGenerator[VerifyProgress | Verified]:
    """How far it is, then what was found. of is a model or a commit's first digits; null: all that is on disk.

    Raises LlmgwError when nothing is called so. What is closed early reads on no further.
    """
    models = services.store.models.all()
    used_by, found = users(models), list[VerifiedView]()
    for revision in _wanted(await anyio.to_thread.run_sync(services.library.newest_first), models, of):
        stop, seen = threading.Event(), [0, sum(file.size_bytes for file in revision.files)]

        def report(done: int, total: int, seen: list[int] = seen) -> None:
            seen[:] = done, total

        verifying = in_background(partial(_verify, services, revision, repair, report, stop))
        try:
            told_at = anyio.current_time()
            yield VerifyProgress(revision.repo, revision.sha, ProgressView(0, seen[1], "bytes"))
            while not verifying.done():
                await anyio.sleep(LOOK_EVERY_S)
                if anyio.current_time() - told_at > TELL_EVERY_S:
                    told_at = anyio.current_time()
                    yield VerifyProgress(revision.repo, revision.sha, ProgressView(seen[0], seen[1], "bytes"))
        finally:
            stop.set()
        said, damage = verifying.result()
        users_of = used_by.get((revision.repo, revision.sha), ())
        found.append(
            VerifiedView(
                revision.repo,
                revision.sha,
                said,
                damage,
                users_of,
                repaired=bool(said and damage),
                files=len(revision.files),
            )
        )
    yield Verified(found)


def _wanted(there: list[Snapshot], models: list[Model], of: str | None) -> list[Snapshot]:
    """Of what is on disk. Raises LlmgwError when nothing is called so."""
    if of is None:
        return there
    rows = [row for row in models if of in (row.name, row.canary_of)]
    keys = {(origin.repo, origin.revision) for row in rows for origin in (row.origin, row.previous) if origin}
    is_commit = not rows and len(of) >= SHORTEST_PREFIX
    found = [each for each in there if (each.repo, each.sha) in keys or (is_commit and each.sha.startswith(of))]
    if not found:
        hint = "see what there is: `llmgw ctl weights list`"
        raise unknown("no_such_weights", f"{of} has no weights on disk", hint=hint)
    return found


def _verify(
    services: Services, revision: Snapshot, repair: bool, report: Callable[[int, int], None], stop: threading.Event
) -> tuple[str, str]:
    """What was verified, and what was damaged; both when that was repaired."""
    library, name = services.library, (revision.repo, revision.sha)
    try:
        said = library.verify(*name, revision.files, full=True, forget=repair, progress=report, cancelled=stop)
        return said, ""
    except LlmgwError as error:
        if not repair:
            return "", error.message
        damage = error.message
    try:
        fetch(services.hub, revision, revision.files, library, progress=report, cancelled=stop)
    except LlmgwError as error:
        return "", f"{damage}; it cannot be fetched again: {error.message}"
    return "fetched again what was damaged", damage
