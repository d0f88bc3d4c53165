"""How often the hub is asked by itself."""

from typing import Any, cast

import pytest

from llmgwd import updates
from llmgwd.domain.catalog import Model, Origin
from llmgwd.jobs.services import Services
from llmgwd.updates import note_newer, pause_s


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
