"""A socket path short enough for any platform, and a daemon in whose house all is well."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ctl.house import well
from tests.ctl.scripted_daemon import ScriptedDaemon


@pytest.fixture
def socket_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="llmgw-") as folder:
        yield Path(folder) / "llmgwd.sock"


@pytest.fixture
def daemon(socket_path: Path) -> Iterator[ScriptedDaemon]:
    with ScriptedDaemon(socket_path, well()) as running:
        yield running
