"""How often the hub is asked by itself."""

from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from llmgwd import updates
from llmgwd.domain.catalog import Model, Origin
from llmgwd.jobs.services import Services
from llmgwd.protocol.views import UpdateView
from llmgwd.updates import check_all, note_newer, pause_s


@pytest.mark.parametrize(("chance", "expected"), [(0.0, 3240.0), (0.5, 3600.0), (1.0, 3960.0)])
def test_checks_are_spread_around_their_time(chance: float, expected: float) -> None:
    assert pause_s(3600.0, chance) == pytest.approx(expected)


@pytest.mark.anyio
async def test_a_model_that_cannot_be_checked_does_not_keep_the_others_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[str] = []

    async def check(services: Any, model: Model) -> Any:
        checked.append(model.name)
        raise ValueError("nobody expected this")

    monkeypatch.setattr(updates, "check", check)
    origin = Origin(repo="org/repo", revision="a" * 40)
    await note_newer(cast(Services, None), [Model(name="one", origin=origin), Model(name="two", origin=origin)])
    assert checked == ["one", "two"]


def view(model: Model, summary: str) -> UpdateView:
    return UpdateView(model.name, None, None, None, newer=False, summary=summary)


@pytest.mark.anyio
async def test_a_few_models_are_checked_at_once_and_each_is_told_when_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models, running, most = [Model(name=str(number), origin=Origin()) for number in range(20)], 0, 0
    go_on = anyio.Event()

    async def check(services: Any, model: Model) -> UpdateView:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if model.name == "0":
            await go_on.wait()  # the first asked is the last to answer
        if model.name == "1":
            running -= 1
            raise ValueError("nobody expected this")
        await anyio.lowlevel.checkpoint()
        running -= 1
        return view(model, "nothing newer")

    monkeypatch.setattr(updates, "check", check)
    send, receive = anyio.create_memory_object_stream[UpdateView](len(models))
    told: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(check_all, cast(Services, None), models, send)
        async for each in receive:
            told.append(each.model)
            if len(told) == len(models) - 1:
                go_on.set()
    assert told[-1] == "0"
    assert sorted(told) == sorted(model.name for model in models)
    assert most == updates.CHECKS_AT_ONCE
    listed = await check_all(cast(Services, None), models)
    assert [each.model for each in listed] == [model.name for model in models]
    assert listed[1].summary == "ValueError: nobody expected this"


@pytest.mark.anyio
async def test_a_hub_that_hangs_is_not_waited_for_longer_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(services: Any, model: Model) -> UpdateView:
        if model.name == "hangs":
            await anyio.sleep_forever()
        return view(model, "nothing newer")

    monkeypatch.setattr(updates, "check", check)
    monkeypatch.setattr(updates, "CHECK_WITHIN_S", 0.05)
    models = [Model(name=name, origin=Origin()) for name in ("hangs", "chat")]
    hangs, chat = await check_all(cast(Services, None), models)
    assert (hangs.summary, chat.summary) == ("the hub has not answered within 0.05 s", "nothing newer")
