"""The adapters of a model that is added: found, fetched and checked in the same steps as its weights."""

from functools import partial

import msgspec

from llmgwd.domain.catalog import Adapter, Origin
from llmgwd.domain.files import Snapshot, size_words
from llmgwd.jobs import acquire
from llmgwd.jobs.clean_up import kept_now
from llmgwd.jobs.run import Run
from llmgwd.protocol.messages import AdapterChoice, AddModel
from llmgwd.protocol.states import WeightsFormat
from llmgwd.weights.adapters import choose_adapter, find_local_adapter
from llmgwd.weights.local import LocalWeights, hash_local


async def repository(run: Run) -> str:
    """As of the weights, then finds each adapter."""
    detail = await acquire.repository(run)
    found = [await _find(run, choice) for choice in _asked(run)]
    run.note(adapters=tuple(found))
    return _with(detail, [f"{each.name}: {_where(each.origin)}" for each in found])


async def weights(run: Run) -> str:
    """As of the weights, then fetches each adapter that is not on disk."""
    detail = await acquire.weights(run)
    words = []
    for adapter in run.job.adapters:
        chosen = _snapshot(adapter)
        if chosen is None:
            continue
        await run.in_thread(partial(acquire.fetch_chosen, run, chosen, await kept_now(run.services)))
        words.append(f"{adapter.name}: {size_words(adapter.origin.size_bytes or 0)}")
    return _with(detail, words)


async def checksums(run: Run) -> str:
    """As of the weights, then makes sure of each adapter; local ones are hashed."""
    detail = await acquire.checksums(run)
    checked, words = [], []
    for adapter in run.job.adapters:
        chosen, library = _snapshot(adapter), run.services.library
        if chosen is not None:
            await run.in_thread(partial(library.verify, chosen.repo, chosen.sha, chosen.files))
            checked.append(adapter)
            continue
        origin = adapter.origin
        assert origin.path is not None
        local = await run.in_thread(partial(find_local_adapter, origin.path, _format(run)))
        contents = await run.in_thread(partial(hash_local, local, cancelled=run.cancel_flag))
        checked.append(Adapter(adapter.name, msgspec.structs.replace(origin, contents=contents)))
        words.append(f"{adapter.name}: sha256 {checked[-1].origin.content}")
    run.note(adapters=tuple(checked))
    return _with(detail, words)


def _asked(run: Run) -> tuple[AdapterChoice, ...]:
    request = acquire.asked(run)
    assert isinstance(request, AddModel)
    return request.adapters


def _format(run: Run) -> WeightsFormat:
    """Of the adapters that the engine takes."""
    request = acquire.asked(run)
    assert isinstance(request, AddModel)
    return run.services.engines[request.engine].weights


async def _find(run: Run, choice: AdapterChoice) -> Adapter:
    wanted = _format(run)
    if choice.path is not None:
        local: LocalWeights = await run.in_thread(partial(find_local_adapter, choice.path, wanted))
        return Adapter(choice.name, Origin(path=local.path, files=local.files, size_bytes=local.size_bytes))
    assert choice.repo is not None
    found = await run.in_thread(partial(acquire.snapshot, run, choice.repo, choice.revision))
    files = choose_adapter(found.files, wanted, choice.repo)
    return Adapter(choice.name, acquire.origin_of(Snapshot(found.repo, found.sha, files)))


def _snapshot(adapter: Adapter) -> Snapshot | None:
    """What is to be on disk of it; None for a local one."""
    origin = adapter.origin
    if origin.repo is None or origin.revision is None:
        return None
    return Snapshot(origin.repo, origin.revision, origin.contents)


def _where(origin: Origin) -> str:
    return f"{origin.repo} at {origin.short}" if origin.repo else origin.short


def _with(detail: str, words: list[str]) -> str:
    return "; ".join((str(detail), *(f"adapter {each}" for each in words))) if words else detail
