"""The watch loop looks at every canary, whatever becomes of another."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import msgspec
import pytest

from llmgwd import watch
from llmgwd.dataplane.suspicion import Suspicion
from llmgwd.domain.errors import LlmgwError
from llmgwd.jobs.services import Services
from llmgwd.protocol.states import CanaryPhase
from llmgwd.store.store import Store
from tests.dataplane.test_bench import BEGAN, CANARY

pytestmark = pytest.mark.anyio


@pytest.fixture
def services(tmp_path: Path) -> Services:
    """Two canaries on their way out, looked at as fast as can be."""
    store = Store(tmp_path / "llmgw.db")
    for name in ("a", "b"):
        store.canaries.put(msgspec.structs.replace(CANARY, id=name, model=name, phase=CanaryPhase.REMOVING))
    parts = SimpleNamespace(
        store=store,
        settings=SimpleNamespace(canary=SimpleNamespace(every=0.001)),
        dataplane=SimpleNamespace(suspicion=Suspicion(), save=lambda: None),
        feed=SimpleNamespace(publish=lambda _: None),
        now=lambda: BEGAN,
    )
    return cast("Services", parts)


async def watched_until(services: Services, seen: Callable[[], bool]) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.watch, services, cast("Any", None))
        with anyio.fail_after(10):
            while not seen():  # noqa: ASYNC110 - nothing signals a look
                await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()


async def test_while_one_canary_drains_it_is_left_to_and_the_others_are_looked_at(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    async def take_out(_: Services, canary: str, **__: Any) -> None:
        seen.append(canary)
        if canary == "a":
            await anyio.sleep_forever()

    monkeypatch.setattr(watch, "take_out", take_out)
    await watched_until(services, lambda: seen.count("b") > 3)
    assert seen.count("a") == 1


@pytest.mark.parametrize("error", [LlmgwError("x", "why"), ValueError("nobody foresaw it")])
async def test_a_canary_that_cannot_be_acted_on_is_tried_again_and_the_others_too(
    services: Services, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    seen: list[str] = []

    async def take_out(_: Services, canary: str, **__: Any) -> None:
        seen.append(canary)
        if canary == "a":
            raise error

    monkeypatch.setattr(watch, "take_out", take_out)
    await watched_until(services, lambda: seen.count("a") > 2 and seen.count("b") > 2)


async def test_a_bad_answer_has_its_own_canary_looked_at_and_no_other(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    async def take_out(_: Services, canary: str, **__: Any) -> None:
        seen.append(canary)
        if len(seen) < 3:
            services.dataplane.suspicion.add({"b"})

    monkeypatch.setattr(watch, "take_out", take_out)
    cast("Any", services.settings.canary).every = 1000.0
    services.dataplane.suspicion.add({"b"})
    await watched_until(services, lambda: len(seen) == 3)
    assert seen == ["b", "b", "b"]


async def test_bad_answers_without_end_do_not_put_off_the_look_at_the_others(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    async def take_out(_: Services, canary: str, **__: Any) -> None:
        seen.append(canary)
        services.dataplane.suspicion.add({"b"})

    monkeypatch.setattr(watch, "take_out", take_out)
    services.dataplane.suspicion.add({"b"})
    await watched_until(services, lambda: seen.count("a") > 2)
