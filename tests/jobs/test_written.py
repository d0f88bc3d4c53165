"""What is on disk, and when: decisions before what follows from them."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from llmgwd.domain.catalog import Model, Origin
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.jobs import Job
from llmgwd.jobs import clean_up, move, take_out, upkeep
from llmgwd.jobs.run import Run
from llmgwd.jobs.runner import Recipe, Runner
from llmgwd.jobs.services import Services
from llmgwd.jobs.share import give_share
from llmgwd.protocol import messages as m
from llmgwd.protocol.states import JobKind
from llmgwd.store.store import Store
from tests.dataplane.test_bench import CANARY

pytestmark = pytest.mark.anyio
OLD, NEW = Origin(repo="a/b", revision="1" * 40), Origin(repo="a/b", revision="2" * 40)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Fleet:
    """Notes what was on disk when a replica was started."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.started: dict[str, bool] = {}
        """By id, whether its job knew it."""

    def of(self, _: str) -> list[Any]:
        return []

    def new_id(self, _: object) -> str:
        return f"chat-{len(self.started)}-new"

    def start(self, _: object, *, keep_trying: bool, replica_id: str | None = None, serves: bool) -> None:
        (job,) = self.store.jobs.unfinished()
        self.started[replica_id or "nobody's"] = keep_trying and replica_id in job.replaced


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    store = Store(tmp_path / "llmgw.db")
    store.models.put(Model("chat", OLD))
    announced: list[object] = []

    async def publish() -> int:
        return 1

    made = Services(
        settings=cast("Any", SimpleNamespace(weights=SimpleNamespace(keep_revisions=2))),
        engines={},
        store=store,
        hub=cast("Any", None),
        library=cast("Any", None),
        space=cast("Any", None),
        fleet=cast("Any", Fleet(store)),
        dataplane=cast("Any", SimpleNamespace(publish=publish, withhold=lambda *_, **__: None)),
        feed=cast("Any", SimpleNamespace(publish=lambda _: None)),
        state_folder=tmp_path,
        notify=announced.append,
        now=lambda: NOW,
    )
    yield made
    store.close()


def job(services: Services, kind: JobKind) -> Job:
    made = Job("job-1", kind, "chat", "ann", NOW, before=Model("chat", NEW), written=True)
    services.store.jobs.insert(1, made)
    return made


@pytest.mark.parametrize(("kind", "remembered"), [(JobKind.ROLLBACK, True), (JobKind.UPDATE, False)])
async def test_a_revision_that_was_left_is_remembered_whatever_becomes_of_its_replicas(
    services: Services, monkeypatch: pytest.MonkeyPatch, kind: JobKind, *, remembered: bool
) -> None:
    async def start_missing(_: Run) -> tuple[int, int]:
        return 1, 0

    async def stop_old(_: Run) -> int:
        raise LlmgwError("not_ended", "chat-1 does not end")

    monkeypatch.setattr(move, "start_missing", start_missing)
    monkeypatch.setattr(move, "stop_old", stop_old)
    with pytest.raises(LlmgwError, match="does not end"):
        await move.replicas(Run(job(services, kind), services))
    assert (
        services.store.canaries.why_rejected("chat", Origin(repo="a/b", revision="2" * 40)) is not None
    ) is remembered


async def test_a_replica_that_serves_until_its_job_has_gone_on_is_known_to_the_job_before_it_runs(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Services, "spec", lambda _, model: model)
    made = job(services, JobKind.UPDATE)
    upkeep._serve_meanwhile(services, Model("chat", OLD), made)
    assert list(cast("Fleet", services.fleet).started.values()) == [True]


async def test_a_share_that_is_given_already_is_no_event(services: Services) -> None:
    services.store.canaries.put(CANARY)
    for percent, events in ((50.0, 0), (60.0, 1), (60.0, 1)):
        changed = await give_share(services, "chat", percent, by="ann")
        assert changed.share == percent
        assert len(services.store.events.recent(9)) == events


async def test_one_canary_is_taken_out_once_at_a_time_and_nothing_of_it_stays_in_memory(services: Services) -> None:
    inside, most = 0, 0

    async def alone() -> None:
        nonlocal inside, most
        async with take_out._alone(services, "c"):
            inside += 1
            most = max(most, inside)
            await anyio.lowlevel.checkpoint()
            inside -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(alone)
    assert most == 1
    assert not services.taking_out


async def test_a_job_that_comes_while_weights_are_removed_waits_and_one_that_runs_keeps_them(
    services: Services,
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def prune(*_: object, **__: object) -> list[Any]:
        began.set()
        assert go_on.wait(10)
        return []

    services.library = cast("Any", SimpleNamespace(newest_first=list, prune=prune))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clean_up.clean_up, services)
        await anyio.to_thread.run_sync(began.wait)
        assert services.cleaning.locked()
        go_on.set()
    began.clear()
    job(services, JobKind.UPDATE)
    await clean_up.clean_up(services)
    assert not began.is_set()


async def test_a_job_takes_no_step_while_weights_are_removed(services: Services) -> None:
    taken: list[str] = []

    async def step(run: Run) -> str:
        assert not services.cleaning.locked()
        taken.append(run.job.id)
        return "done"

    async with anyio.create_task_group() as tasks:
        recipes = {JobKind.REMOVE: Recipe((step, step, step), lambda _: "gone", cast("Any", None))}
        runner = Runner(services, recipes, tasks)
        async with services.cleaning:
            submitted = runner.submit(JobKind.REMOVE, "chat", "ann", m.RemoveModel("chat"))
            with anyio.fail_after(10):
                await anyio.wait_all_tasks_blocked()
            assert not taken
    assert taken == [submitted.id] * 3
