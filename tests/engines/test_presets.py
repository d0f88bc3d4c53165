"""Each preset on a program of its name that behaves like the real one: its command line, readiness, end."""

import dataclasses
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx2
import msgspec
import pytest

from llmgwd import process
from llmgwd.domain.catalog import Origin
from llmgwd.domain.errors import LlmgwError
from llmgwd.engines.adapters import AdapterOnDisk, adapter_routes
from llmgwd.engines.fleet import Fleet
from llmgwd.engines.placement import Placement
from llmgwd.engines.presets import PRESETS
from llmgwd.engines.replica import Replica, ReplicaSpec
from llmgwd.engines.templates import FIELDS, command, find_program, named, slots
from llmgwd.protocol.states import ReplicaState, WeightsFormat
from llmgwd.store.patient import PatientProcesses
from llmgwd.store.store import Store
from llmgwd.weights.weigh import weigh
from tests.support.behaving_engines import programs
from tests.support.small_machine import SmallMachine
from tests.support.toy_engine import FOLDER_FILE, Behaviour

pytestmark = pytest.mark.anyio

STARTED = ["llama-server", "vllm", "sglang", "mlx", "tgi", "ollama"]
VALUES = {**dict.fromkeys(FIELDS, ""), "path": "/w/m", "name": "org/chat", "host": "127.0.0.1", "port": "20001"}


@pytest.mark.parametrize(
    ("preset", "words"),
    [
        ("llamacpp", "PYTHON -m llmgwd.engines.embedded --model /w/m --alias org/chat"),
        ("llama-server", "llama-server --model /w/m --alias org/chat"),
        ("vllm", "vllm serve /w/m --served-model-name org/chat"),
        ("sglang", "sglang serve --model-path /w/m --served-model-name org/chat"),
        ("mlx", "mlx_lm.server --model /w/m"),
        ("ollama", "PYTHON -m llmgwd.engines.ollama --model /w/m --name llmgw"),
    ],
)
def test_command_lines(preset: str, words: str) -> None:
    expected = words.replace("PYTHON", sys.executable).split()
    assert command(PRESETS[preset], ("--more",), VALUES) == [
        *expected,
        *("--host", "127.0.0.1", "--port", "20001", "--more"),
    ]


def test_the_command_line_of_tgi_gives_each_its_own_socket() -> None:
    assert command(PRESETS["tgi"], (), VALUES) == [
        *("text-generation-launcher", "--model-id", "/w/m", "--hostname", "127.0.0.1", "--port", "20001"),
        *("--shard-uds-path", "/tmp/llmgw-tgi-20001"),
    ]


def test_the_projector_goes_to_those_that_take_one() -> None:
    values = VALUES | {"projector": "/w/p"}
    for preset, option in {"llamacpp": "--mmproj", "llama-server": "--mmproj", "ollama": "--projector"}.items():
        argv = command(PRESETS[preset], (), values)
        assert argv[argv.index(option) + 1] == "/w/p"


@pytest.mark.parametrize(
    ("preset", "extra", "expected"),
    [
        ("llama-server", (), None),
        ("llama-server", ("-np", "3"), 3),
        ("vllm", ("--max-num-seqs=64",), 64),
        ("sglang", ("--max-running-requests", "32"), 32),
        ("mlx", ("--decode-concurrency", "16"), 16),
        ("ollama", ("--parallel", "2"), 2),
        ("external", (), None),
    ],
)
def test_slots(preset: str, extra: tuple[str, ...], expected: int | None) -> None:
    assert slots(PRESETS[preset], extra) == expected


class Place:
    """A fleet in a folder, whose engines find the programs that behave like them."""

    def __init__(self, folder: Path, tasks: anyio.abc.TaskGroup) -> None:
        self.folder = folder
        self.bin = programs(folder / "bin")
        (folder / "logs").mkdir()
        self.changed = anyio.Event()
        self.store = Store(folder / "llmgw.db")
        self.records = PatientProcesses(self.store.processes)
        self.fleet = self.next_life(tasks)

    def next_life(self, tasks: anyio.abc.TaskGroup) -> Fleet:
        placement = Placement(SmallMachine(), weigh, self.store.footprints)
        return Fleet(self.folder, tasks, self.records, placement, self._wake, lambda _: float("-inf"))

    def _wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def start(
        self,
        preset: str,
        behaviour: Behaviour,
        name: str = "org/chat",
        adapters: tuple[AdapterOnDisk, ...] = (),
        **settings: Any,
    ) -> Replica:
        env = {"PATH": f"{self.bin}:{os.environ['PATH']}"}
        engine = msgspec.structs.replace(PRESETS[preset], **{"env": env, "ready_timeout_s": 30.0, **settings})
        weights = self.folder / f"weights-{name.replace('/', '-')}"
        if engine.weights is WeightsFormat.FOLDER:
            weights.mkdir(exist_ok=True)
            (weights / FOLDER_FILE).write_bytes(behaviour.weights())
        else:
            weights.write_bytes(behaviour.weights())
        origin = Origin(path=str(weights))
        spec = ReplicaSpec(name, named(engine, name), origin, weights, engine, (), adapters=adapters)
        return self.fleet.start(spec)

    def adapter(self, name: str) -> AdapterOnDisk:
        """One that answers with its own name."""
        path = self.folder / f"{name}.lora"
        path.write_bytes(Behaviour(words=f"as {name}").weights())
        return AdapterOnDisk(name, path)

    async def until(self, replica: Replica, state: ReplicaState) -> None:
        with anyio.fail_after(30):
            while replica.state is not state:
                await self.changed.wait()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with anyio.create_task_group() as tasks:
        made = Place(tmp_path, tasks)
        yield made
        await made.fleet.stop_all()
        assert process.marked(tmp_path) == []
        tasks.cancel_scope.cancel()


async def ask(replica: Replica, model: str, **fields: Any) -> httpx2.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}
    async with httpx2.AsyncClient(base_url=replica.address, trust_env=False) as client:
        return await client.post("/v1/chat/completions", json=body)


@pytest.mark.parametrize("preset", STARTED)
async def test_it_is_ready_once_it_is_loaded_and_answers_to_the_name_that_it_is_asked_for(
    place: Place, preset: str
) -> None:
    replica = place.start(preset, Behaviour(load_s=0.5, words="loaded"))
    await place.fleet.ensure_ready(replica)
    assert replica.state is ReplicaState.READY
    reply = await ask(replica, replica.spec.served_name)
    assert (reply.status_code, "loaded" in reply.text) == (200, True)


@pytest.mark.parametrize("preset", ["llama-server", "vllm", "sglang"])
async def test_adapters_answer_to_who_asks_for_them_and_to_nobody_else(place: Place, preset: str) -> None:
    adapters = (place.adapter("legal"), place.adapter("sql"))
    replica = place.start(preset, Behaviour(words="plain"), "qwen2.5:7b", adapters)
    await place.fleet.ensure_ready(replica)
    spec = replica.spec
    for route in adapter_routes(spec.engine, spec.served_name, adapters):
        fields = {name: msgspec.json.decode(value) for name, value in route.fields}
        assert f"as {route.name}" in (await ask(replica, route.served_name, **fields)).text
        assert "plain" in (await ask(replica, spec.served_name)).text


@pytest.mark.parametrize("preset", STARTED)
async def test_a_name_with_a_colon_starts_everywhere(place: Place, preset: str) -> None:
    replica = place.start(preset, Behaviour(words="loaded"), "qwen2.5:7b")
    await place.fleet.ensure_ready(replica)
    assert "loaded" in (await ask(replica, replica.spec.served_name)).text


@pytest.mark.parametrize("preset", STARTED)
async def test_two_serve_side_by_side(place: Place, preset: str) -> None:
    both = [place.start(preset, Behaviour(words=name), name) for name in ("one", "two")]
    for replica in both:
        await place.fleet.ensure_ready(replica)
    for replica in both:
        assert replica.owner in (await ask(replica, replica.spec.served_name)).text


@pytest.mark.parametrize("preset", STARTED)
async def test_its_end_leaves_nothing_of_it(place: Place, preset: str) -> None:
    replica = place.start(preset, Behaviour(forks=preset != "ollama", ignores_term=True), stop_grace_s=0.3)
    await place.fleet.ensure_ready(replica)
    assert len(process.marked(place.folder)) >= 2
    await place.fleet.stop(replica)
    assert process.marked(place.folder) == []


@pytest.mark.parametrize("preset", STARTED)
async def test_weights_that_do_not_load_fail_with_what_the_engine_said(place: Place, preset: str) -> None:
    replica = place.start(preset, Behaviour(loads=False))
    with pytest.raises(LlmgwError, match=r"before it was ready: .*these weights do not load"):
        await place.fleet.ensure_ready(replica)
    assert process.marked(place.folder) == []


@pytest.mark.parametrize("preset", STARTED)
async def test_one_that_never_is_ready_fails_in_time_and_is_ended(place: Place, preset: str) -> None:
    replica = place.start(preset, Behaviour(load_s=600), ready_timeout_s=1.5)
    with pytest.raises(LlmgwError, match=r"was not ready within 1\.5 s"):
        await place.fleet.ensure_ready(replica)
    await place.fleet.stop(replica)
    assert process.marked(place.folder) == []


@pytest.mark.parametrize("preset", STARTED)
async def test_one_that_wedges_is_restarted(place: Place, preset: str) -> None:
    replica = place.start(preset, Behaviour(hangs_after=1), probe_every_s=0.2, probe_timeout_s=0.2)
    await place.fleet.ensure_ready(replica)
    pid = replica.pid
    await place.until(replica, ReplicaState.FAILED)
    assert "did not answer 2 probes in a row" in replica.detail
    await place.until(replica, ReplicaState.READY)
    assert replica.pid != pid


@pytest.mark.parametrize(
    ("preset", "behaviour"),
    [
        ("llama-server", Behaviour(calls_itself="somebody-else")),
        ("vllm", Behaviour(calls_itself="somebody-else")),
        ("vllm", Behaviour(root="/another/revision")),
        ("sglang", Behaviour(calls_itself="somebody-else")),
    ],
)
async def test_one_that_says_it_serves_something_else_is_not_taken_for_ours(
    place: Place, preset: str, behaviour: Behaviour
) -> None:
    replica = place.start(preset, behaviour)
    with pytest.raises(LlmgwError, match="something else answers"):
        await place.fleet.ensure_ready(replica)


async def test_one_that_is_found_running_serves_on_only_if_it_serves_what_is_written(tmp_path: Path) -> None:
    async with anyio.create_task_group() as life:
        before = Place(tmp_path, life)
        right, wrong = (before.start("vllm", Behaviour(), name) for name in ("right", "wrong"))
        for replica in (right, wrong):
            await before.fleet.ensure_ready(replica)
        wrong.spec = dataclasses.replace(wrong.spec, path=tmp_path / "another-revision")
        before.fleet.give(wrong, "wrong")
        life.cancel_scope.cancel()
    async with anyio.create_task_group() as tasks:
        after = before.next_life(tasks)
        found = {replica.owner: replica.state for replica in await after.adopt([])}
        assert found == {"right": ReplicaState.READY, "wrong": ReplicaState.STARTING}
        after.take_up()
        await after.stop_all()
        tasks.cancel_scope.cancel()
    assert process.marked(tmp_path) == []


async def test_a_program_that_is_not_there_is_named(place: Place) -> None:
    for preset, says in {"vllm": "vllm cannot be started", "ollama": "ollama cannot be started"}.items():
        replica = place.start(preset, Behaviour(), name=preset, env={"PATH": str(place.folder)})
        with pytest.raises(LlmgwError, match=says):
            await place.fleet.ensure_ready(replica)
        assert find_program(replica.spec.engine) is None
