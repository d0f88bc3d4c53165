"""Replicas as processes: brought up, seen to answer, restarted, ended."""

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import psutil
import pytest

from llmgwd import process
from llmgwd.domain.catalog import Origin
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.processes import ProcessKind
from llmgwd.engines import release
from llmgwd.engines.fleet import Fleet
from llmgwd.engines.gpus import Gpus
from llmgwd.engines.placement import Placement
from llmgwd.engines.replica import Replica, ReplicaSpec
from llmgwd.engines.templates import Engine
from llmgwd.protocol.states import ReplicaState
from llmgwd.store.patient import PatientProcesses
from llmgwd.store.store import Store
from llmgwd.weights.weigh import weigh
from tests.engines.test_gpus import GIB, Driver, gpu
from tests.support.small_machine import SmallMachine
from tests.support.toy_engine import ARGV, Behaviour

pytestmark = pytest.mark.anyio


class Bench:
    """A fleet in a folder."""

    def __init__(self, folder: Path, tasks: anyio.abc.TaskGroup) -> None:
        self.folder = folder
        self.tasks = tasks
        self.changed = anyio.Event()
        (folder / "logs").mkdir()
        self.store = Store(folder / "llmgw.db")
        self.machine = SmallMachine()
        self.heard_at = float("-inf")
        self.asked_when_heard = 0
        self.fleet = self.another_fleet()

    def another_fleet(self, *, tasks: anyio.abc.TaskGroup | None = None, gpus: Gpus | None = None) -> Fleet:
        """One more on the same folder and store, as the next life of a daemon has it."""
        records = PatientProcesses(self.store.processes)
        placement = Placement(self.machine, weigh, self.store.footprints)
        return Fleet(self.folder, tasks or self.tasks, records, placement, self._wake, self._heard_at, gpus)

    def _heard_at(self, replica: str) -> float:
        self.asked_when_heard += 1
        self._wake()
        return self.heard_at

    def _wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def pids(self) -> list[int]:
        """The processes that the fleet's mark is on."""
        return [each.pid for each in process.marked(self.folder)]

    def start(
        self,
        behaviour: Behaviour,
        *,
        keep_trying: bool = False,
        argv: list[str] = ARGV,
        probe_every_s: float = 30.0,
        probe_timeout_s: float = 60.0,
        stop_grace_s: float = 10.0,
    ) -> Replica:
        weights = self.folder / "w.gguf"
        weights.write_bytes(behaviour.weights())
        engine = Engine(
            tuple(argv),
            ready_timeout_s=20,
            probe_every_s=probe_every_s,
            probe_timeout_s=probe_timeout_s,
            stop_grace_s=stop_grace_s,
        )
        spec = ReplicaSpec("org/chat", "org/chat", Origin(path=str(weights)), weights, engine, ())
        return self.fleet.start(spec, keep_trying=keep_trying)

    async def until(self, replica: Replica, state: ReplicaState) -> None:
        with anyio.fail_after(30):
            while replica.state is not state:
                await self.changed.wait()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with anyio.create_task_group() as tasks:
        made = Bench(tmp_path, tasks)
        yield made
        await made.fleet.stop_all()
        assert made.pids() == []
        tasks.cancel_scope.cancel()


async def test_a_replica_is_ready_once_it_has_answered(bench: Bench) -> None:
    replica = bench.start(Behaviour(load_s=0.3))
    assert bench.fleet.ready("org/chat") == []
    await bench.fleet.ensure_ready(replica)
    assert bench.fleet.ready("org/chat") == [replica]
    assert replica.pid is not None
    assert bench.pids() == [replica.pid]
    assert replica.log.exists()
    assert "/" not in replica.id


@pytest.mark.parametrize(
    ("behaviour", "argv", "says"),
    [
        pytest.param(Behaviour(loads=False), ARGV, "ended with status 1 before it was ready: these weights", id="ends"),
        pytest.param(Behaviour(status=503), ARGV, "answered 503", id="does not answer"),
        pytest.param(Behaviour(), ["/no/such/engine", "{port}"], "/no/such/engine cannot be started", id="not there"),
    ],
)
async def test_a_first_start_that_fails_is_final_and_says_why(
    bench: Bench, behaviour: Behaviour, argv: list[str], says: str
) -> None:
    replica = bench.start(behaviour, argv=argv)
    with pytest.raises(LlmgwError, match=says):
        await bench.fleet.ensure_ready(replica)
    assert replica.state is ReplicaState.FAILED
    assert bench.pids() == []


async def test_a_replica_that_ends_is_restarted_on_the_same_address(bench: Bench) -> None:
    replica = bench.start(Behaviour())
    await bench.fleet.ensure_ready(replica)
    pid, port = replica.pid, replica.port
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await bench.until(replica, ReplicaState.FAILED)
    assert "status -9" in replica.detail
    await bench.until(replica, ReplicaState.READY)
    assert replica.pid != pid
    assert replica.port == port


async def test_one_that_keeps_trying_is_started_again_until_it_is_ready(bench: Bench) -> None:
    replica = bench.start(Behaviour(loads=False), keep_trying=True)
    await bench.until(replica, ReplicaState.FAILED)
    replica.spec.path.write_bytes(Behaviour().weights())
    await bench.until(replica, ReplicaState.READY)


async def test_stopping_ends_one_that_ignores_term_and_one_that_is_not_ready(
    bench: Bench,
) -> None:
    deaf = bench.start(Behaviour(ignores_term=True), stop_grace_s=0.1)
    await bench.fleet.ensure_ready(deaf)
    loading = bench.start(Behaviour(load_s=600))
    while loading.pid is None:
        await anyio.lowlevel.checkpoint()
    pids = [deaf.pid, loading.pid]
    await bench.fleet.stop(deaf)
    await bench.fleet.stop(loading)
    assert [pid for pid in pids if pid and process.identity(pid)] == []
    assert bench.fleet.all() == []
    with pytest.raises(LlmgwError, match="was stopped"):
        await bench.fleet.ensure_ready(loading)


async def test_a_stop_at_any_moment_of_the_start_leaves_no_process(bench: Bench) -> None:
    for steps in range(12):
        replica = bench.start(Behaviour(load_s=600))
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        await bench.fleet.stop(replica)
        assert bench.pids() == []


async def test_one_that_was_drained_while_it_started_is_never_ready(bench: Bench) -> None:
    replica = bench.start(Behaviour(load_s=0.2))
    while replica.pid is None:
        await anyio.lowlevel.checkpoint()
    bench.fleet.drain(replica)
    with pytest.raises(LlmgwError, match="not ready within"):
        await bench.fleet.ensure_ready(replica, 1.0)
    assert bench.fleet.ready("org/chat") == []


async def test_one_that_was_drained_and_ends_is_not_restarted(bench: Bench) -> None:
    replica = bench.start(Behaviour())
    await bench.fleet.ensure_ready(replica)
    bench.fleet.drain(replica)
    assert replica.pid is not None
    os.kill(replica.pid, signal.SIGKILL)
    with anyio.fail_after(20):
        await replica.ended.wait()
    assert replica.state is ReplicaState.DRAINING


@pytest.mark.parametrize(
    "reply",
    [
        b"[]",
        b'{"choices": [{"message": {"content": 3}}]}',
        b'{"choices": "none"}',
        b'{"choices": [{"text": "x"}], "timings": {"predicted_per_second": "fast"}}',
        b"\xff",
    ],
)
async def test_a_reply_of_any_shape_is_no_more_than_a_failed_start(bench: Bench, reply: bytes) -> None:
    replica = bench.start(Behaviour(raw=reply.decode("latin-1")))
    with pytest.raises(LlmgwError, match="no completion"):
        await bench.fleet.ensure_ready(replica)


@pytest.mark.parametrize("name", ["HF_TOKEN", "NOTIFY_SOCKET", "LISTEN_FDS"])
async def test_what_is_said_to_the_daemon_alone_is_not_the_engines(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    replica = bench.start(Behaviour())
    await bench.fleet.ensure_ready(replica)
    assert name not in psutil.Process(replica.pid).environ()


async def test_a_replica_given_to_another_row_runs_on(bench: Bench) -> None:
    replica = bench.start(Behaviour())
    await bench.fleet.ensure_ready(replica)
    bench.fleet.give(replica, "chat")
    assert bench.fleet.ready("chat") == [replica]
    assert bench.fleet.of("org/chat") == []
    bench.fleet.drain(replica)
    assert bench.fleet.ready("chat") == []
    assert bench.fleet.of("chat") == [replica]


async def test_what_outlives_a_daemon_is_adopted_with_all_that_is_known_of_it(bench: Bench) -> None:
    async with anyio.create_task_group() as life:
        earlier = bench.another_fleet(tasks=life)
        bench.fleet = earlier
        left = bench.start(Behaviour())
        await earlier.ensure_ready(left)
        earlier.give(left, "chat")
        life.cancel_scope.cancel()
    bench.fleet = bench.another_fleet()
    (found,) = await bench.fleet.adopt([])
    bench.fleet.take_up()
    assert found.state is ReplicaState.READY
    assert (found.id, found.pid, found.port, found.owner) == (left.id, left.pid, left.port, "chat")
    assert found.spec == left.spec
    assert left.pid is not None
    os.kill(left.pid, signal.SIGKILL)
    await bench.until(found, ReplicaState.FAILED)
    await bench.until(found, ReplicaState.READY)
    assert found.pid != left.pid
    assert found.port == left.port


async def test_an_adopted_replica_that_did_not_serve_yet_or_is_a_canarys_is_not_ready_before_it_answers(
    bench: Bench,
) -> None:
    async with anyio.create_task_group() as life:
        bench.fleet = bench.another_fleet(tasks=life)
        canarys = bench.start(Behaviour())
        await bench.fleet.ensure_ready(canarys)
        bench.fleet.give(canarys, "org/chat-canary")
        loads = bench.start(Behaviour(load_s=1.0))
        while loads.pid is None:
            await anyio.lowlevel.checkpoint()
        life.cancel_scope.cancel()
    bench.fleet = bench.another_fleet()
    found = await bench.fleet.adopt([])
    bench.fleet.take_up()
    assert [each.id for each in found] == [canarys.id, loads.id]
    assert {each.state for each in found} == {ReplicaState.STARTING}
    for each in found:
        await bench.fleet.ensure_ready(each)
    assert [each.pid for each in found] == [canarys.pid, loads.pid]


async def test_what_is_adopted_is_left_alone_until_it_is_taken_up(bench: Bench) -> None:
    async with anyio.create_task_group() as life:
        bench.fleet = bench.another_fleet(tasks=life)
        runs, gone = bench.start(Behaviour()), bench.start(Behaviour())
        await bench.fleet.ensure_ready(runs)
        await bench.fleet.ensure_ready(gone)
        bench.fleet.give(runs, "org/chat-canary")
        life.cancel_scope.cancel()
    assert gone.process is not None
    await gone.process.end(5)
    said = bench.changed
    async with anyio.create_task_group() as refused:
        (found,) = await bench.another_fleet(tasks=refused).adopt([])
        await anyio.lowlevel.checkpoint()
        refused.cancel_scope.cancel()
    assert found.state is ReplicaState.STARTING
    assert not said.is_set()
    assert bench.pids() == [runs.pid]
    assert len(bench.store.processes.all(ProcessKind.REPLICA)) == 2
    bench.fleet = bench.another_fleet()
    (found,) = await bench.fleet.adopt([])
    bench.fleet.take_up()
    await bench.fleet.ensure_ready(found)
    assert found.pid == runs.pid


async def test_one_that_did_not_end_is_ended_by_the_next_stop(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = bench.start(Behaviour())
    await bench.fleet.ensure_ready(replica)

    async def does_not_end(*_: object) -> bool:
        return False

    with monkeypatch.context() as patched:
        patched.setattr(process.Process, "end", does_not_end)
        for _ in range(2):
            with pytest.raises(LlmgwError, match="does not end"):
                await bench.fleet.stop(replica)
    assert len(bench.store.processes.all(ProcessKind.REPLICA)) == 1
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.fleet.stop, replica)
        tasks.start_soon(bench.fleet.stop, replica)
    assert bench.pids() == []
    assert bench.fleet.all() == []
    assert bench.store.processes.all(ProcessKind.REPLICA) == []


async def test_one_whose_port_somebody_took_is_restarted_on_another(bench: Bench) -> None:
    replica = bench.start(Behaviour())
    await bench.fleet.ensure_ready(replica)
    port = replica.port
    assert replica.pid is not None
    os.kill(replica.pid, signal.SIGKILL)
    await bench.until(replica, ReplicaState.FAILED)
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taker.bind(("127.0.0.1", port))
        taker.listen()
        await bench.until(replica, ReplicaState.READY)
        assert replica.port != port


async def test_a_stranger_that_answers_in_its_place_is_not_taken_for_it(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came between the look at the port and the engine's start, and the engine never gets to listen."""
    folder = tmp_path_factory.mktemp("elsewhere")
    async with anyio.create_task_group() as tasks:
        elsewhere = Bench(folder, tasks)
        stranger = elsewhere.start(Behaviour())
        await elsewhere.fleet.ensure_ready(stranger)
        monkeypatch.setattr("llmgwd.engines.fleet.free_port", lambda *_: stranger.port)
        monkeypatch.setattr("llmgwd.engines.fleet.is_taken", lambda *_: False)
        replica = bench.start(Behaviour(), argv=[sys.executable, "-c", "import time; time.sleep(60)", "{port}"])
        with pytest.raises(LlmgwError, match="something else answers at"):
            await bench.fleet.ensure_ready(replica)
        await elsewhere.fleet.stop_all()
        tasks.cancel_scope.cancel()


async def test_one_that_fails_again_and_again_is_in_a_crash_loop_with_growing_pauses_until_it_serves(
    bench: Bench,
) -> None:
    replica = bench.start(Behaviour(loads=False), keep_trying=True)
    details = []
    for state in (ReplicaState.FAILED, ReplicaState.STARTING, ReplicaState.FAILED, ReplicaState.CRASH_LOOP):
        await bench.until(replica, state)
        details.append(replica.detail)
    assert [each.rpartition("; ")[2] for each in details] == [
        "starts again in 1 s",
        "starts again in 1 s",
        "failed 2 times in a row, starts again in 2 s",
        "failed 3 times in a row, starts again in 4 s",
    ]
    assert set(replica.said) == {"these weights do not load"}
    replica.spec.path.write_bytes(Behaviour().weights())
    await bench.until(replica, ReplicaState.READY)
    assert not replica.detail
    assert not replica.said


async def test_a_hung_replica_is_taken_out_after_two_probes_and_restarted(bench: Bench) -> None:
    replica = bench.start(Behaviour(), probe_every_s=0.05, probe_timeout_s=0.2)
    await bench.fleet.ensure_ready(replica)
    pid = replica.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    await bench.until(replica, ReplicaState.FAILED)
    assert "did not answer 2 probes in a row" in replica.detail
    await bench.until(replica, ReplicaState.READY)
    assert replica.pid != pid


async def test_a_replica_that_answers_clients_is_not_taken_for_hung(bench: Bench) -> None:
    replica = bench.start(Behaviour(), probe_every_s=0.05, probe_timeout_s=0.1)
    await bench.fleet.ensure_ready(replica)
    assert replica.pid is not None
    # It has no room for a probe, but the gateway hears of it all the time.
    bench.heard_at = float("inf")
    os.kill(replica.pid, signal.SIGSTOP)
    asked = bench.asked_when_heard
    with anyio.fail_after(30):
        while bench.asked_when_heard < asked + 10:
            await bench.changed.wait()
    assert replica.state is ReplicaState.READY
    bench.heard_at = float("-inf")
    await bench.until(replica, ReplicaState.FAILED)


class Card(Driver):
    """A GPU on which the bench's replica has 8 GiB, and which takes `looks` looks after its end to have them again."""

    def __init__(self, looks: float) -> None:
        super().__init__(gpu(1))
        self.looks = looks

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        (on_it,) = self.pids
        if process.identity(on_it) is not None:
            self.gpus = [gpu(9, (on_it, 8))]
        elif self.looks > 0:
            self.looks -= 1
            self.gpus = [gpu(9)]
        else:
            self.gpus = [gpu(1)]
        return super().nvmlDeviceGetCount()

    pids: tuple[int, ...] = ()


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        pytest.param(3, [], id="comes back"),
        pytest.param(float("inf"), [f"gpu=0 bytes={8 * GIB}"], id="does not come back"),
    ],
)
async def test_a_replica_is_stopped_once_its_gpu_has_its_memory_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, looks: float, said: list[str]
) -> None:
    monkeypatch.setattr(release, "RELEASE_WAIT_S", 1.0)
    card = Card(looks)
    bench.fleet = bench.another_fleet(gpus=Gpus(card))
    replica = bench.start(Behaviour())
    await bench.fleet.ensure_ready(replica)
    assert replica.pid is not None
    card.pids = (replica.pid,)
    await bench.fleet.stop(replica)
    assert replica.state is ReplicaState.STOPPED
    assert card.looks in (0, float("inf"))
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [words.partition(f"id={replica.id} ")[2] for words in errors] == said
