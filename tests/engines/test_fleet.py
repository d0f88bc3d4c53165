"""Replicas as processes: brought up, seen to answer, restarted, ended."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import psutil
import pytest

from llmgwd import process
from llmgwd.domain.catalog import Origin
from llmgwd.domain.errors import LlmgwError
from llmgwd.engines.fleet import Fleet
from llmgwd.engines.replica import Replica, ReplicaSpec
from llmgwd.engines.templates import Engine
from llmgwd.protocol.states import ReplicaState
from llmgwd.store.store import Store
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
        self.heard_at = float("-inf")
        self.fleet = self.another_fleet()

    def another_fleet(self, *, outlives: bool = False, tasks: anyio.abc.TaskGroup | None = None) -> Fleet:
        """One more on the same folder and store, as the next life of a daemon has it."""
        records = self.store.processes
        heard_at = lambda _: self.heard_at  # noqa: E731
        return Fleet(self.folder, tasks or self.tasks, records, self._wake, heard_at, outlives=outlives)

    def _wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def pids(self) -> list[int]:
        """The processes that the fleet's mark is on."""
        return [each.pid for each in process.marked(self.folder)]

    def start(self, behaviour: Behaviour, *, keep_trying: bool = False, argv: list[str] = ARGV) -> Replica:
        weights = self.folder / "w.gguf"
        weights.write_bytes(behaviour.weights())
        engine = Engine(tuple(argv), ready_timeout_s=20)
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
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmgwd.engines.fleet.STOP_GRACE_S", 0.1)
    deaf = bench.start(Behaviour(ignores_term=True))
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


async def test_the_hubs_token_is_not_the_engines(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    replica = bench.start(Behaviour())
    await bench.fleet.ensure_ready(replica)
    assert "HF_TOKEN" not in psutil.Process(replica.pid).environ()


async def test_a_replica_given_to_another_row_runs_on(bench: Bench) -> None:
    replica = bench.start(Behaviour())
    await bench.fleet.ensure_ready(replica)
    bench.fleet.give(replica, "chat")
    assert bench.fleet.ready("chat") == [replica]
    assert bench.fleet.of("org/chat") == []
    bench.fleet.drain(replica)
    assert bench.fleet.ready("chat") == []
    assert bench.fleet.of("chat") == [replica]
