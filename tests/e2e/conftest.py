from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.house import House, house_on


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A fresh daemon with its own hub, and no model."""
    with house_on(tmp_path) as fresh:
        yield fresh
