"""What the daemon keeps is its owner's alone, in a state folder that others may look into too."""

import os
import stat
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from llmgwd.private import make_private
from llmgwd.store.backup import back_up
from llmgwd.store.store import Store


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


@pytest.mark.usefixtures("open_umask")
def test_the_database_and_its_copies_are_closed_to_others_also_where_they_were_open(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "llmgw.db"
    beside = [path, tmp_path / "llmgw.db-wal", tmp_path / "llmgw.db-shm"]
    first = Store(path)
    assert [mode(each) for each in beside] == ["0o600"] * 3
    for each in beside:
        each.chmod(0o644)
    second = Store(path)
    assert [mode(each) for each in beside] == ["0o600"] * 3
    (tmp_path / "backups").mkdir(mode=0o755)
    assert back_up(path, date(2026, 1, 1)) is not None
    assert mode(tmp_path / "backups") == "0o700"
    first.close()
    second.close()


@pytest.mark.usefixtures("open_umask")
def test_a_folder_is_closed_whether_it_is_there_or_not(tmp_path: Path) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.mkdir()
    for each in (there, new):
        make_private(each)
        assert mode(each) == "0o700"
