"""Deadlines are looked at as long as the worker serves, whatever one client's state is."""

import asyncio
from pathlib import Path

import pytest

from llmgwd.gateway.client import MOST_EXCESS
from llmgwd.gateway.listener import open_listener
from llmgwd.gateway.settings import Settings
from llmgwd.gateway.worker import Worker, files_wanted
from tests.gateway.test_client import IDLE_S, Bench
from tests.gateway.test_client import bench as bench
from tests.support.house import free_port


def test_a_client_that_cannot_be_checked_is_cut_and_the_others_are_looked_at(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def check(self, now: float) -> None:
            raise ZeroDivisionError("no good")

        def abort(self) -> None:
            self.is_cut = True

    broken = Broken()
    bench.gateway.clients = {broken, bench.client}  # type: ignore[arg-type]
    bench.gateway.excess = {broken}  # type: ignore[arg-type]
    bench.clock.now += IDLE_S
    bench.gateway.sweep()
    assert bench.wire.is_cut
    assert broken.is_cut
    assert "no good" in caplog.text


@pytest.mark.parametrize("part", ["_sweep", "_link"])
def test_a_worker_whose_sweep_or_link_ends_ends_too_and_says_why(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails() -> None:
        raise ZeroDivisionError("no good")

    async def run() -> bool:
        listening = open_listener(f"127.0.0.1:{free_port()}", reuse_port=False)
        worker = Worker(Settings("w", drain_s=0.1), tmp_path / "no.sock", [listening])
        if part == "_sweep":
            monkeypatch.setattr(worker, "_sweep", fails)
        else:
            monkeypatch.setattr(worker._link, "run", fails)
        async with asyncio.timeout(10):
            return await worker.run()

    assert asyncio.run(run()) is False
    assert "no good" in caplog.text


def test_files_for_who_is_told_to_come_again_are_not_those_of_the_worker() -> None:
    settings = Settings("w", max_connections=1000)
    own = files_wanted(settings) - 2 * settings.max_connections - MOST_EXCESS
    assert own >= settings.upstream_idle_connections + 32
