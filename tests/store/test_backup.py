import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from llmgwd.domain.catalog import Model, Origin
from llmgwd.protocol.states import EventKind
from llmgwd.store.backup import KEPT, back_up, newest_backup
from llmgwd.store.store import Store

DAY = date(2026, 1, 2)
CHAT = Model(name="chat", origin=Origin(path="/x"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "llmgw.db")
    yield opened
    opened.close()


def test_a_copy_holds_what_was_written_and_opens_as_a_database(tmp_path: Path, store: Store) -> None:
    store.models.put(CHAT)
    made = back_up(tmp_path / "llmgw.db", DAY)
    assert made is not None
    assert made.name == "llmgw-2026-01-02.db"
    assert sorted(path.name for path in made.parent.iterdir()) == [made.name]
    with closing(Store(made)) as copy:
        assert copy.models.all() == [CHAT]


def test_a_day_has_one_copy(tmp_path: Path, store: Store) -> None:
    assert back_up(tmp_path / "llmgw.db", DAY) is not None
    assert back_up(tmp_path / "llmgw.db", DAY) is None


def test_the_newest_are_kept_and_other_files_left_alone(tmp_path: Path, store: Store) -> None:
    database = tmp_path / "llmgw.db"
    back_up(database, DAY)
    (tmp_path / "backups" / "llmgw-schema-1.db").write_bytes(b"kept")
    made = [back_up(database, DAY + timedelta(days=number)) for number in range(1, KEPT + 3)]
    assert newest_backup(database) == made[-1]
    left = {path.name for path in (tmp_path / "backups").iterdir()}
    assert left == {path.name for path in made[-KEPT:] if path} | {"llmgw-schema-1.db"}


def test_a_copy_is_of_one_moment_while_the_daemon_is_in_the_middle_of_a_change(tmp_path: Path, store: Store) -> None:
    store.models.put(CHAT)
    with store.transaction():
        store.models.delete("chat")
        store.events.log(datetime(2026, 1, 2, tzinfo=UTC), "ann", EventKind.MODEL_REMOVED, "chat")
        made = back_up(tmp_path / "llmgw.db", DAY)
    assert made is not None
    with closing(sqlite3.connect(made)) as copy:
        assert copy.execute("SELECT count(*) FROM models").fetchone() == (1,)
        assert copy.execute("SELECT count(*) FROM events").fetchone() == (0,)


def test_a_copy_that_was_cut_off_is_no_backup(tmp_path: Path, store: Store) -> None:
    (tmp_path / "backups").mkdir()
    (tmp_path / "backups" / "llmgw-2026-01-02.new").write_bytes(b"half of it")
    assert newest_backup(tmp_path / "llmgw.db") is None
    assert back_up(tmp_path / "llmgw.db", DAY) is not None
