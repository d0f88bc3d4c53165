"""What workers counted is on disk once, whole, before they are told so; also when the disk takes nothing."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from llmgwd.dataplane.bench import Bench
from llmgwd.dataplane.dataplane import Dataplane
from llmgwd.dataplane.link import Link
from llmgwd.dataplane.tally import Tally
from llmgwd.dataplane.totals import Totals
from llmgwd.domain.processes import ProcessKind, ProcessRecord
from llmgwd.protocol.link import Report, ReportTaken, WorkerHello
from llmgwd.protocol.samples import Arm, ArmSample, LookSample, Outcome
from llmgwd.store.database import StoreError
from llmgwd.store.store import Store
from tests.dataplane.test_bench import CANARY, FIRST
from tests.dataplane.test_link import Worker

pytestmark = pytest.mark.anyio
NOBODY = cast("Any", None)
"""The fleet and the workers, which nothing here asks."""


def report(seq: int, ok: int) -> Report:
    sample = ArmSample("chat", Arm.CANARY, "r", "c", {Outcome.OK: ok})
    return Report(seq, 0, {}, (sample,), looks=(LookSample("c", Arm.CANARY, FIRST, 50.0, arrived=ok, ended=ok),))


class Life:
    """One life of the daemon's end of the link, on the state of those before it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "link.sock"
        self.store = Store(folder / "llmgw.db")
        self.link = Link(self.path, lambda report: self.dataplane.take(report), Totals(anyio.current_time))
        bench = Bench(self.store.canaries)
        self.dataplane = Dataplane(self.store, NOBODY, self.link, NOBODY, Tally(self.store.canaries), bench)
        for record in self.store.processes.all(ProcessKind.WORKER):
            self.link.resume(record.id, record.pid, record.reports)

    def refuse_writes(self, *, refused: bool = True) -> None:
        cast("Any", self.store)._connection.execute(f"PRAGMA query_only = {int(refused)}")

    @property
    def on_disk(self) -> int:
        """The canary's good answers."""
        return sum(each.outcomes[Outcome.OK] for each in self.store.canaries.samples("c"))

    @property
    def counted(self) -> int:
        return self.dataplane.tally.of(CANARY, Arm.CANARY).outcomes.get(Outcome.OK, 0)


@asynccontextmanager
async def life(folder: Path, *, saves: bool = True) -> AsyncIterator[Life]:
    """Ends without another word, as by a kill."""
    made = Life(folder)
    async with anyio.create_task_group() as tasks:
        await tasks.start(made.link.serve)
        if saves:
            tasks.start_soon(made.dataplane.keep_saved)
        yield made
        with anyio.fail_after(10):
            while made.link.workers:  # noqa: ASYNC110 - the link announces to itself only
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    made.store.close()


@asynccontextmanager
async def worker(of: Life) -> AsyncIterator[Worker]:
    async with await anyio.connect_unix(of.path) as stream:
        made = Worker(stream)
        await made.say(WorkerHello("w", 1))
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = Store(tmp_path / "llmgw.db")
    store.canaries.put(CANARY)
    Bench(store.canaries).open("c", {}, 30)
    store.processes.put(ProcessRecord("w", ProcessKind.WORKER, 1, "boot:1", b"{}"))
    store.close()
    return tmp_path


async def taken(life: Life, count: int) -> None:
    with anyio.fail_after(10):
        while life.counted < count:  # noqa: ASYNC110 - the link announces to itself only
            await anyio.sleep(0.01)


async def said_again(folder: Path) -> int:
    """What the next life has counted when the first report, of 5, has come to it again, and the next, of 2."""
    async with life(folder) as second, worker(second) as speaker:
        for seq, ok in ((1, 5), (2, 2)):
            await speaker.say(report(seq, ok))
            assert await speaker.hear() == ReportTaken(seq)
        assert second.on_disk == second.counted
        return second.counted


async def test_a_report_is_on_disk_when_its_worker_is_told_and_is_not_counted_again_by_the_next_life(
    folder: Path,
) -> None:
    async with life(folder) as first, worker(first) as speaker:
        await speaker.say(report(1, 5))
        assert await speaker.hear() == ReportTaken(1)
        assert first.on_disk == 5
    assert await said_again(folder) == 7  # as by one whom the word did not reach


async def test_a_report_that_was_taken_and_not_saved_is_counted_by_the_next_life(folder: Path) -> None:
    async with life(folder, saves=False) as first, worker(first) as speaker:
        await speaker.say(report(1, 5))
        await taken(first, 5)
        assert first.on_disk == 0
    assert await said_again(folder) == 7


async def test_when_a_canary_ends_what_is_saved_of_others_is_not_counted_again(folder: Path) -> None:
    async with life(folder, saves=False) as first, worker(first) as speaker:
        await speaker.say(report(1, 5))
        await taken(first, 5)
        first.dataplane.save()
        first.dataplane.forget("another")
    assert await said_again(folder) == 7


async def test_a_save_that_fails_is_whole_the_next_time(folder: Path) -> None:
    async with life(folder, saves=False) as here, worker(here) as speaker:
        await speaker.say(report(1, 5))
        await taken(here, 5)
        here.refuse_writes()
        with pytest.raises(StoreError):
            here.dataplane.save()
        here.refuse_writes(refused=False)
        here.dataplane.save()
        assert here.on_disk == 5
        evidence = here.store.canaries.evidence("c")
        assert evidence is not None
        assert evidence.arrived[0] == 5


async def test_a_worker_is_heard_on_while_the_disk_takes_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with life(folder) as here, worker(here) as speaker:
        here.refuse_writes()
        for seq in (1, 2):
            await speaker.say(report(seq, 5))
            assert await speaker.hear() == ReportTaken(seq)
        assert here.counted == 10
        assert len(caplog.records) == 1
        here.refuse_writes(refused=False)
        await speaker.say(report(3, 5))
        assert await speaker.hear() == ReportTaken(3)
        assert here.on_disk == 15


async def test_a_report_that_cannot_be_taken_comes_again_whole_and_ends_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with life(folder) as here:
        find = here.store.canaries.evidence

        def unreadable(_: str) -> None:
            raise StoreError("disk I/O error")

        monkeypatch.setattr(here.store.canaries, "evidence", unreadable)
        async with worker(here) as speaker:
            await speaker.say(report(1, 5))
            with pytest.raises(anyio.EndOfStream):
                await speaker.hear()
        monkeypatch.setattr(here.store.canaries, "evidence", find)
        async with worker(here) as speaker:
            await speaker.say(report(1, 5))
            assert await speaker.hear() == ReportTaken(1)
        assert here.on_disk == 5


async def test_what_comes_late_of_a_canary_that_ended_is_saved_and_not_kept_in_memory(folder: Path) -> None:
    async with life(folder) as here:
        cast("sqlite3.Connection", cast("Any", here.store)._connection).execute("DELETE FROM canaries")
        async with worker(here) as speaker:
            await speaker.say(report(1, 5))
            assert await speaker.hear() == ReportTaken(1)
        assert here.on_disk == 5
        assert not cast("Any", here.dataplane.tally)._sums


async def test_a_worker_that_ended_is_forgotten(folder: Path) -> None:
    async with life(folder) as here:
        here.link.forget("w", 1)
        assert not here.link.last_reports
        assert await here.link.applied(1, lambda: {1}, 0) == set()


async def test_a_wish_that_could_not_be_fulfilled_is_still_wished(folder: Path) -> None:
    async with life(folder) as here:
        tries = 0

        async def publish() -> int:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise StoreError("disk I/O error")
            raise EOFError

        here.dataplane.publish = publish  # type: ignore[method-assign]
        here.dataplane.wish()
        for error in (StoreError, EOFError):
            with pytest.raises(error):
                await here.dataplane.fulfil_wishes()
