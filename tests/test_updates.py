"""How often the hub is asked by itself."""

import pytest

from llmgwd.updates import pause_s


@pytest.mark.parametrize(("chance", "expected"), [(0.0, 3240.0), (0.5, 3600.0), (1.0, 3960.0)])
def test_checks_are_spread_around_their_time(chance: float, expected: float) -> None:
    assert pause_s(3600.0, chance) == pytest.approx(expected)
