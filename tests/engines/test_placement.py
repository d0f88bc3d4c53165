"""Room for replicas that are real processes, on a machine of any size."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.abc
import msgspec
import psutil
import pytest

from llmgwd.domain.catalog import Origin
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.gpus import Gpu
from llmgwd.engines.fleet import Fleet
from llmgwd.engines.gpus import VISIBLE
from llmgwd.engines.placement import Placement, wanted
from llmgwd.engines.replica import Replica, ReplicaSpec
from llmgwd.engines.templates import Engine
from llmgwd.protocol.states import ReplicaState
from llmgwd.store.patient import PatientProcesses
from llmgwd.store.store import Store
from llmgwd.weights.weigh import weigh
from tests.support.small_machine import GIB, MIB, Size, SmallMachine
from tests.support.toy_engine import ARGV, Behaviour

pytestmark = pytest.mark.anyio


def gpus(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(index, f"GPU-{index}", "A100", 80 * GIB, 80 * GIB) for index in range(count))


class Bench:
    """A fleet on a machine of a size that a test sets."""

    def __init__(self, folder: Path, tasks: anyio.abc.TaskGroup) -> None:
        self.folder = folder
        (folder / "logs").mkdir()
        self.store = Store(folder / "llmgw.db")
        self.machine = SmallMachine(state=folder)
        self.changed = anyio.Event()
        self.fleet = self.another_fleet(tasks)

    def another_fleet(self, tasks: anyio.abc.TaskGroup) -> Fleet:
        placement = Placement(self.machine, weigh, self.store.footprints)
        records = PatientProcesses(self.store.processes)
        return Fleet(self.folder, tasks, records, placement, self._wake, lambda _: 0.0)

    def _wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def next_change(self) -> None:
        await self.changed.wait()

    def spec(self, model: str = "chat", behaviour: Behaviour | None = None, **others: object) -> ReplicaSpec:
        weights = self.folder / f"{model}.gguf"
        weights.write_bytes((behaviour or Behaviour()).weights())
        engine = Engine(tuple(ARGV), ready_timeout_s=20)
        return ReplicaSpec(model, model, Origin(path=str(weights)), weights, engine, (), **others)  # type: ignore[arg-type]

    async def ready(self, spec: ReplicaSpec) -> Replica:
        replica = self.fleet.start(spec)
        await self.fleet.ensure_ready(replica)
        return replica


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with anyio.create_task_group() as tasks:
        made = Bench(tmp_path, tasks)
        yield made
        await made.fleet.stop_all()
        tasks.cancel_scope.cancel()


async def test_what_does_not_fit_is_not_started(bench: Bench) -> None:
    bench.machine.size = Size(100 * MIB)
    replica = bench.fleet.start(bench.spec())
    with pytest.raises(LlmgwError, match=r"chat does not fit: it needs 128.0 MiB of memory, by estimate .* are free"):
        await bench.fleet.ensure_ready(replica)
    assert replica.pid is None
    assert not replica.log.exists()


async def test_of_two_that_start_at_once_only_one_gets_the_same_room(bench: Bench) -> None:
    bench.machine.size = Size(200 * MIB)
    two = [bench.fleet.start(bench.spec(name, Behaviour(load_s=1))) for name in ("one", "two")]
    failures: list[LlmgwError] = []

    async def wait(replica: Replica) -> None:
        try:
            await bench.fleet.ensure_ready(replica)
        except LlmgwError as error:
            failures.append(error)

    async with anyio.create_task_group() as tasks:
        for replica in two:
            tasks.start_soon(wait, replica)
    assert len(failures) == 1
    assert "takes 128.0 MiB" in failures[0].message
    assert sorted(each.state for each in two) == [ReplicaState.FAILED, ReplicaState.READY]


async def test_what_the_last_start_took_counts_from_then_on(bench: Bench) -> None:
    bench.machine.size = Size(132 * MIB)
    first = await bench.ready(bench.spec())
    assert first.needs is not None
    assert first.needs.measured
    assert MIB < first.needs.private_bytes < 100 * MIB
    # By its estimate a second one would not fit.
    assert await bench.fleet.placement.refusal(wanted(bench.spec("other"))) is not None
    second = await bench.ready(bench.spec())
    assert second.state is ReplicaState.READY


async def test_a_canary_is_taken_for_what_its_models_last_start_took(bench: Bench) -> None:
    await bench.ready(bench.spec())
    bench.machine.size = Size(1 * MIB)
    refusal = await bench.fleet.placement.refusal(wanted(bench.spec("chat-canary")))
    assert refusal is not None
    assert "as its last start took" in refusal.message


async def test_other_arguments_are_another_matter(bench: Bench) -> None:
    first = bench.spec()
    await bench.ready(first)
    bench.machine.size = Size(1 * MIB)
    other = wanted(first)._replace(engine_args=("--ctx-size=1",))
    refusal = await bench.fleet.placement.refusal(other)
    assert refusal is not None
    assert "by estimate" in refusal.message


async def test_the_room_of_a_stopped_replica_is_free_again(bench: Bench) -> None:
    bench.machine.size = Size(132 * MIB)
    first = await bench.ready(bench.spec("one"))
    assert await bench.fleet.placement.refusal(wanted(bench.spec("two"))) is not None
    assert await bench.fleet.placement.refusal(wanted(bench.spec("two")), without=(first.id,)) is None
    await bench.fleet.stop(first)
    await bench.ready(bench.spec("two"))


async def test_the_room_of_one_that_failed_is_free_again(bench: Bench) -> None:
    bench.machine.size = Size(132 * MIB)
    failed = bench.fleet.start(bench.spec("one", Behaviour(loads=False)))
    with pytest.raises(LlmgwError, match="do not load"):
        await bench.fleet.ensure_ready(failed)
    await bench.ready(bench.spec("two"))


async def test_one_that_is_not_to_be_checked_is_started_anyway(bench: Bench) -> None:
    bench.machine.size = Size(1 * MIB)
    assert (await bench.ready(bench.spec(fit_check=False))).state is ReplicaState.READY


async def test_one_that_served_before_is_started_again_whatever_is_free(bench: Bench) -> None:
    first = await bench.ready(bench.spec())
    await bench.fleet.stop(first)
    bench.machine.size = Size(1 * MIB)
    again = bench.fleet.start(bench.spec(), keep_trying=True)
    await bench.fleet.ensure_ready(again)
    new = bench.fleet.start(bench.spec("new"), keep_trying=True)
    with pytest.raises(LlmgwError, match="does not fit"):
        await bench.fleet.ensure_ready(new, 1.0)


async def test_each_replica_sees_the_gpus_that_it_was_given(bench: Bench) -> None:
    bench.machine.size = Size(gpus=gpus(3))
    one, two = await bench.ready(bench.spec("one", gpus=1)), await bench.ready(bench.spec("two", gpus=2))
    none = await bench.ready(bench.spec("none"))
    assert (one.gpus, two.gpus, none.gpus) == (("GPU-0",), ("GPU-1", "GPU-2"), ())
    seen = [psutil.Process(each.pid).environ().get(VISIBLE) for each in (one, two, none)]
    assert seen == ["GPU-0", "GPU-1,GPU-2", ""]
    refused = bench.fleet.start(bench.spec("more", gpus=1))
    with pytest.raises(LlmgwError, match=r"it needs 1 GPU .*GPU 0 \(A100\): one has it; GPU 1 \(A100\): two has it"):
        await bench.fleet.ensure_ready(refused)


async def test_the_command_line_may_say_how_many_gpus_there_are(bench: Bench) -> None:
    bench.machine.size = Size(gpus=gpus(2))
    spec = bench.spec(gpus=2)
    engine = msgspec.structs.replace(spec.engine, argv=(*ARGV[:-1], "{port}", "--gpus={gpus}"))
    for gpus_given in (2, 0):
        replica = bench.fleet.start(replace(spec, engine=engine, gpus=gpus_given))
        with pytest.raises(LlmgwError, match="engine ended"):
            await bench.fleet.ensure_ready(replica)  # the toy knows no such option
        assert f"unrecognized arguments: --gpus={max(1, gpus_given)}" in replica.log.read_text()


async def test_on_a_machine_without_gpus_nothing_is_hidden(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    replica = await bench.ready(bench.spec())
    assert VISIBLE not in psutil.Process(replica.pid).environ()


async def test_a_restart_keeps_its_gpus(bench: Bench) -> None:
    bench.machine.size = Size(gpus=gpus(2))
    replica = await bench.ready(bench.spec(gpus=1))
    pid, process = replica.pid, replica.process
    assert process is not None
    process.terminate()
    with anyio.fail_after(20):
        while replica.pid == pid or replica.state is not ReplicaState.READY:
            await bench.next_change()
    assert replica.gpus == ("GPU-0",)
    assert psutil.Process(replica.pid).environ()[VISIBLE] == "GPU-0"


async def test_what_was_given_is_known_to_the_next_life(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        bench = Bench(tmp_path, tasks)
        bench.machine.size = Size(gpus=gpus(2))
        first = await bench.ready(bench.spec(gpus=1))
        tasks.cancel_scope.cancel()
    async with anyio.create_task_group() as tasks:
        fleet = bench.fleet = bench.another_fleet(tasks)
        (found,) = await fleet.adopt([])
        fleet.take_up()
        await fleet.ensure_ready(found)
        assert (found.gpus, found.needs) == (first.gpus, first.needs)
        other = await bench.ready(bench.spec("other", gpus=1))
        assert other.gpus == ("GPU-1",)
        await fleet.stop_all()
        tasks.cancel_scope.cancel()
