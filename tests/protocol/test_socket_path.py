import os
from pathlib import Path

import pytest

from llmgwd.protocol.socket_path import SocketPathError, control_socket


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Stands for /run."""
    return tmp_path / "run"


def test_the_option_wins_over_everything(run: Path) -> None:
    assert control_socket(Path("/a"), {"LLMGW_SOCKET": "/b"}, run) == Path("/a")


def test_the_variable_wins_over_the_system_service(run: Path) -> None:
    (run / "llmgw").mkdir(parents=True)
    (run / "llmgw" / "llmgwd.sock").touch()
    assert control_socket(None, {"LLMGW_SOCKET": "/b"}, run) == Path("/b")
    assert control_socket(None, {}, run) == run / "llmgw" / "llmgwd.sock"


def test_the_runtime_folder_is_found_by_uid_without_its_variable(run: Path) -> None:
    own = run / "user" / str(os.getuid())
    own.mkdir(parents=True)
    assert control_socket(None, {"XDG_RUNTIME_DIR": "/elsewhere"}, run) == own / "llmgw" / "llmgwd.sock"


def test_without_a_runtime_folder_it_is_in_the_state_folder(run: Path) -> None:
    assert control_socket(None, {"LLMGW_STATE_DIR": "/state"}, run) == Path("/state/llmgwd.sock")


def test_a_path_over_the_limit_is_refused_with_its_length(run: Path) -> None:
    path = Path("/" + "x" * 200)
    with pytest.raises(SocketPathError, match="201 bytes"):
        control_socket(path, {}, run)
