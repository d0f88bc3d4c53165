"""The daemon's end of the link, with scripted workers on a real socket."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import msgspec
import pytest

from llmgwd.dataplane.link import Link
from llmgwd.dataplane.totals import Totals
from llmgwd.protocol.framing import FrameReader, frame
from llmgwd.protocol.link import (
    LINK_VERSION,
    FromWorker,
    Report,
    ReportTaken,
    Routes,
    RoutesApplied,
    ToWorker,
    WorkerHello,
)
from llmgwd.protocol.samples import Arm, ArmSample, Outcome

PIDS = {"w": 1, "a": 2, "b": 3}
OTHER_VERSION = LINK_VERSION + 1
pytestmark = pytest.mark.anyio
SAMPLE = ArmSample("chat", Arm.STABLE, "abc", "c1", {Outcome.OK: 3})


class Worker:
    """A worker that says and hears what a test wants."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        self._reader = FrameReader()
        self._waiting: list[bytes] = []

    async def say(self, message: FromWorker) -> None:
        await self.say_frame(message)

    async def say_frame(self, words: object) -> None:
        await self._stream.send(frame(msgspec.msgpack.encode(words)))

    async def hear(self) -> ToWorker:
        while not self._waiting:
            self._waiting += self._reader.feed(await self._stream.receive())
        heard: ToWorker = msgspec.msgpack.decode(self._waiting.pop(0), type=ToWorker)
        return heard


async def acknowledges(link: Link) -> None:
    """In the place of what saves first."""
    while True:
        await link.awaits_saving()
        await link.acknowledge()


class Bench:
    """A link that listens, and what it took."""

    def __init__(self, folder: Path, take: Callable[[Report], None] | None = None) -> None:
        self.path = folder / "link.sock"
        self.taken: list[ArmSample] = []
        self.totals = Totals(anyio.current_time)
        self.link = Link(self.path, take or (lambda report: self.taken.extend(report.samples)), self.totals)

    @asynccontextmanager
    async def worker(self, name: str = "w", version: int = LINK_VERSION) -> AsyncIterator[Worker]:
        async with await anyio.connect_unix(self.path) as stream:
            worker = Worker(stream)
            await worker.say(WorkerHello(name, PIDS[name], version))
            yield worker


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    async with anyio.create_task_group() as tasks:
        await tasks.start(made.link.serve)
        tasks.start_soon(acknowledges, made.link)
        await made.link.push(Routes(0))
        yield made
        tasks.cancel_scope.cancel()


async def test_a_worker_gets_the_present_routes_at_once_and_each_change(bench: Bench) -> None:
    await bench.link.push(Routes(1))
    async with bench.worker() as worker:
        assert await worker.hear() == Routes(1)
        await bench.link.push(Routes(2))
        assert await worker.hear() == Routes(2)


async def test_routes_hold_only_when_every_worker_said_so(bench: Bench) -> None:
    async with bench.worker("a") as first, bench.worker("b") as second:
        assert await first.hear() == await second.hear() == Routes(0)
        await bench.link.push(Routes(1))
        await first.say(RoutesApplied(1))
        assert await bench.link.applied(1, set, 0.1) == {PIDS["b"]}
        await second.say(RoutesApplied(1))
        assert await bench.link.applied(1, set, 10) == set()


async def test_a_running_worker_whose_link_is_down_still_follows_its_old_table(bench: Bench) -> None:
    async with bench.worker() as worker:
        await worker.hear()
        await worker.say(RoutesApplied(0))
    await bench.link.push(Routes(1))
    # 9 never said hello in this life, and so has no table of it.
    assert await bench.link.applied(1, lambda: {PIDS["w"], 9}, 0.1) == {PIDS["w"]}
    async with bench.worker() as worker:
        await worker.hear()
        await worker.say(RoutesApplied(1))
        assert await bench.link.applied(1, lambda: {PIDS["w"], 9}, 10) == set()


async def test_a_report_that_comes_twice_counts_once_also_over_connections(bench: Bench) -> None:
    async with bench.worker() as worker:
        await worker.hear()
        for _ in range(2):
            await worker.say(Report(1, 0, {}, (SAMPLE,)))
            assert await worker.hear() == ReportTaken(1)
    async with bench.worker() as worker:
        await worker.hear()
        await worker.say(Report(1, 0, {}, (SAMPLE,)))
        assert await worker.hear() == ReportTaken(1)
        await worker.say(Report(2, 0, {}, (SAMPLE,)))
        assert await worker.hear() == ReportTaken(2)
    assert bench.taken == [SAMPLE, SAMPLE]


async def test_a_replica_is_drained_when_no_worker_that_follows_the_table_has_a_request_on_it(bench: Bench) -> None:
    async with bench.worker("a") as first, bench.worker("b") as second:
        await first.hear()
        await second.hear()
        await first.say(Report(1, 0, {"r1": 1}))
        await first.hear()
        await first.say(RoutesApplied(5, {"r1": 1}))
        assert await bench.link.drained("r1", 5, set, 0.1) == 1
        await first.say(Report(2, 5, {}))
        # The second has not said that it follows the table: it may still send requests there.
        with pytest.raises(TimeoutError), anyio.fail_after(0.1):
            await bench.link.drained("r1", 5, set, 60)
        await second.say(RoutesApplied(5, {}))
        assert await bench.link.drained("r1", 5, set, 60) == 0


async def test_a_replica_is_not_drained_while_a_running_worker_cannot_say_so(bench: Bench) -> None:
    running = {PIDS["w"]}
    async with bench.worker() as worker:
        await worker.hear()
        await worker.say(RoutesApplied(1, {"r1": 1}))
        assert await bench.link.drained("r1", 1, lambda: running, 0.1) == 1
    with pytest.raises(TimeoutError), anyio.fail_after(0.1):
        await bench.link.drained("r1", 1, lambda: running, 60)
    async with bench.worker() as worker:
        await worker.hear()
        await worker.say(RoutesApplied(1, {}))
        assert await bench.link.drained("r1", 1, lambda: running, 60) == 0


async def test_a_worker_that_is_gone_holds_nothing_up(bench: Bench) -> None:
    async with bench.worker() as worker:
        await worker.hear()
        await worker.say(Report(1, 0, {"r1": 1}))
        await worker.hear()
    await bench.link.push(Routes(1))
    assert await bench.link.applied(1, set, 10) == set()
    assert await bench.link.drained("r1", 1, set, 10) == 0


async def test_a_worker_of_another_version_hands_in_what_it_counted_and_is_given_no_routes(bench: Bench) -> None:
    bench.link.resume("w", PIDS["w"], 1, follows=False)
    async with bench.worker(version=OTHER_VERSION) as old:
        for seq in (1, 2):  # the first was saved in the life before
            await old.say(Report(seq, 0, {}, (SAMPLE,)))
            assert await old.hear() == ReportTaken(seq)
        await bench.link.push(Routes(1))
        assert await bench.link.applied(1, lambda: {PIDS["w"]}, 10) == set()
        assert not bench.link.workers
    assert bench.taken == [SAMPLE]


async def test_of_a_worker_of_another_version_what_cannot_be_read_ends_its_link_alone(bench: Bench) -> None:
    async with bench.worker("a") as worker, bench.worker("b", version=OTHER_VERSION) as old:
        await worker.hear()
        await old.say_frame({"type": "Report", "sequence": 1})
        with pytest.raises(anyio.EndOfStream):
            await old.hear()
        await bench.link.push(Routes(1))
        assert await worker.hear() == Routes(1)


async def test_a_report_that_can_never_be_taken_is_complained_of_once_and_its_worker_follows_routes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = Bench(tmp_path, take=fails)
    async with anyio.create_task_group() as tasks:
        await tasks.start(made.link.serve)
        await made.link.push(Routes(1))
        for _ in range(3):
            async with made.worker() as worker:
                assert await worker.hear() == Routes(1)
                await worker.say(RoutesApplied(1))
                assert await made.link.applied(1, lambda: {PIDS["w"]}, 10) == set()
                await worker.say(Report(1, 1, {}, (SAMPLE,)))
                with pytest.raises(anyio.EndOfStream):
                    await worker.hear()
        tasks.cancel_scope.cancel()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "a gateway worker was not understood: RuntimeError('not this one') worker=w"
    ]


def fails(_: Report) -> None:
    raise RuntimeError("not this one")


@pytest.mark.parametrize("garbage", [frame(b"\xc1"), frame(b"\x93\x01\x02\x03"), b"\xff\xff\xff\xff"])
async def test_a_peer_that_does_not_speak_the_link_is_cut_off_and_the_rest_go_on(bench: Bench, garbage: bytes) -> None:
    async with bench.worker() as worker, await anyio.connect_unix(bench.path) as stranger:
        await worker.hear()
        await stranger.send(garbage)
        with pytest.raises(anyio.EndOfStream):
            await stranger.receive()
        await bench.link.push(Routes(1))
        assert await worker.hear() == Routes(1)
