"""Real worker processes on one address, with the daemon's end of their link (G10)."""

import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync
from prometheus_client.parser import text_string_to_metric_families

from llmgwd.config import Address, GatewaySettings
from llmgwd.dataplane.link import Link
from llmgwd.dataplane.totals import Totals
from llmgwd.dataplane.workers import Workers
from llmgwd.metrics import Metrics
from llmgwd.protocol.link import ArmRoute, CanaryRoute, ModelRoute, ReplicaRoute, Routes
from llmgwd.protocol.samples import ArmSample, Outcome
from llmgwd.store.patient import PatientProcesses
from llmgwd.store.store import Store
from tests.dataplane.test_link import acknowledges
from tests.gateway.answers import DONE, HELLO, ROLE, STOP, fails, says
from tests.gateway.client import Client, ask, request
from tests.gateway.upstream import Connection, Request, Script, Upstream
from tests.support.house import free_port

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"


class Gateway:
    """Workers, and what they told."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.samples: list[ArmSample] = []
        self.port = free_port()
        self.totals = Totals(anyio.current_time)
        self.folder = folder
        (folder / "logs").mkdir(exist_ok=True)
        self.store = Store(folder / "llmgw.db")
        take = lambda report: self.samples.extend(report.samples)  # noqa: E731
        path = folder / "link.sock"
        self.link = Link(path, take, self.totals, lambda *handed: self.workers.take_listeners(*handed))
        settings = GatewaySettings(listen=Address("127.0.0.1", self.port), workers=workers, max_in_flight=64)
        self.workers = Workers(settings, path, folder, PatientProcesses(self.store.processes), "1.0", self.link.forget)
        self.metrics = Metrics(self.totals, self.link)

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(20):
            while not condition():  # noqa: ASYNC110 - the link announces to itself only
                await anyio.sleep(0.02)

    def gauges(self, name: str) -> dict[str, float]:
        """By arm."""
        page, _ = self.metrics.page("")
        families = text_string_to_metric_families(page.decode())
        return {each.labels["arm"]: each.value for family in families for each in family.samples if each.name == name}


@asynccontextmanager
async def gateway(folder: Path, workers: int, *routes: ModelRoute) -> AsyncIterator[Gateway]:
    made = Gateway(folder, workers)
    async with anyio.create_task_group() as tasks:
        await tasks.start(made.link.serve)
        tasks.start_soon(acknowledges, made.link)
        await made.link.push(Routes(1, routes))
        made.workers.start(tasks, made.link)
        with anyio.fail_after(20):
            await made.link.connected(workers)
        try:
            yield made
        finally:
            with anyio.CancelScope(shield=True):
                told = {each.pid for each in made.link.workers}
                await made.link.finish(0.5)
                await made.workers.wait_ended(5, told)
            tasks.cancel_scope.cancel()


def model(stable: Upstream, canary: Upstream | None = None) -> ModelRoute:
    def arm(engine: Upstream) -> ArmRoute:
        return ArmRoute("abc", (ReplicaRoute(f"r-{engine.port}", "127.0.0.1", engine.port, "chat"),))

    return ModelRoute("chat", arm(stable), canary=None if canary is None else CanaryRoute("c1", 50, arm(canary)))


async def test_a_worker_that_is_killed_is_replaced_and_the_others_lose_nothing(tmp_path: Path) -> None:
    release = threading.Event()

    def script(connection: Connection, request: Request) -> None:
        connection.start_stream()
        connection.chunk(ROLE + HELLO)
        release.wait(20)
        connection.stream_end(STOP + DONE)

    def ended(client: Client) -> bool:
        return client.read_rest().endswith(b"0\r\n\r\n")

    engine = Upstream(script)
    async with gateway(tmp_path, 2, model(engine)) as house:
        # The kernel chooses the worker for each connection; with so many, both have some.
        clients = [await run_sync(Client, house.port) for _ in range(24)]
        for client in clients:
            client.send(request(CHAT, {"model": "chat", "stream": True}, "Connection: close"))
        await house.until(lambda: sum(sum(each.in_flight.values()) for each in house.link.workers) == len(clients))
        victim, other = house.link.workers
        lost, kept = (sum(each.in_flight.values()) for each in (victim, other))
        assert lost
        assert kept
        os.kill(victim.pid, signal.SIGKILL)
        await house.until(lambda: len(house.link.workers) == 2 and victim not in house.link.workers)
        await house.link.connected(2)
        assert house.gauges("llmgw_requests_in_flight") == {"stable": kept}
        release.set()
        assert sum([await run_sync(ended, client) for client in clients]) == kept
        for client in clients:
            client.close()
        assert (await run_sync(partial(ask, house.port, "/health"))).status == 200
        await house.until(lambda: house.gauges("llmgw_requests_in_flight") == {"stable": 0})
        assert sum(sample.outcomes.get(Outcome.OK, 0) for sample in house.samples) == kept
    engine.close()


async def test_new_routes_reach_every_worker_before_they_count_as_applied(tmp_path: Path) -> None:
    engine = Upstream(says())
    async with gateway(tmp_path, 2) as house:
        await house.link.push(Routes(2, (model(engine),)))
        assert await house.link.applied(2, lambda: house.workers.pids, 10) == set()

        def statuses() -> set[int]:
            return {ask(house.port, CHAT, {"model": "chat"}).status for _ in range(16)}

        assert await run_sync(statuses) == {200}
    engine.close()


async def test_after_any_mix_of_outcomes_every_gauge_is_zero(tmp_path: Path) -> None:
    number = 0

    def moody(connection: Connection, request: Request) -> None:
        nonlocal number
        number += 1
        MOODS[number % len(MOODS)](connection, request)

    def press(port: int) -> None:
        for turn in range(60):
            client = Client(port)
            arm = ("x-llmgw-arm: stable",) if turn % 7 == 0 else ()
            client.send(request(CHAT, {"model": "chat", "stream": bool(turn % 2)}, *arm))
            if turn % 4:
                client.read()
            client.close()

    engine, canary = Upstream(moody), Upstream(moody)
    async with gateway(tmp_path, 1, model(engine, canary)) as house:
        async with anyio.create_task_group() as clients:
            for _ in range(4):
                clients.start_soon(run_sync, press, house.port)

        def counted() -> int:
            return sum(sum(each.outcomes.values()) + each.forced for each in house.samples if not each.apart)

        await house.until(lambda: counted() >= 240)
        nothing = {"stable": 0.0, "canary": 0.0}
        await house.until(lambda: house.gauges("llmgw_requests_in_flight") == nothing)
        assert house.gauges("llmgw_requests_waiting") == nothing
        assert counted() == 240
    engine.close()
    canary.close()


def half(connection: Connection, request: Request) -> None:
    connection.start_stream()
    connection.chunk(ROLE + HELLO)
    connection.close()


def resets(connection: Connection, request: Request) -> None:
    connection.reset()


def mumbles(connection: Connection, request: Request) -> None:
    connection.send(b"mumble\r\n\r\n")


MOODS: list[Script] = [says(), fails(500), half, says(), resets, fails(429), mumbles, fails(400), says()]
