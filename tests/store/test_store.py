import sqlite3
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import msgspec
import pytest

from llmgwd.domain.canary import Canary
from llmgwd.domain.catalog import Model, Origin
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile
from llmgwd.domain.jobs import Job, planned
from llmgwd.protocol.samples import Arm, ArmSample, Outcome
from llmgwd.protocol.states import CanaryPhase, EventKind, JobKind, JobState
from llmgwd.store.backup import back_up
from llmgwd.store.database import MIGRATIONS, StoreError, _in_words
from llmgwd.store.store import Store

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ORIGIN = Origin(repo="org/repo", revision="a" * 40, files=("x.gguf",))
CHAT = Model(name="chat", origin=ORIGIN)
CANARY = Canary("canary-1-1", "chat", ORIGIN, ORIGIN, 10, "ann", NOW)
JOB = Job("add-1-1", JobKind.ADD, "chat", "ann", NOW, b"\x80", steps=planned(JobKind.ADD))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "llmgw.db")
    yield opened
    opened.close()


def test_records_are_read_back_as_they_were_by_the_next_life(tmp_path: Path) -> None:
    first = Store(tmp_path / "llmgw.db")
    first.models.put(CHAT)
    first.canaries.put(CANARY)
    first.jobs.insert(1, JOB)
    first.close()
    second = Store(tmp_path / "llmgw.db")
    assert second.models.all() == [CHAT]
    assert second.canaries.of("chat") == CANARY
    assert second.jobs.get("add-1-1") == JOB
    second.close()


def test_a_transaction_that_raises_has_written_nothing(store: Store) -> None:
    with pytest.raises(RuntimeError), store.transaction():
        store.models.put(CHAT)
        store.events.log(NOW, "ann", EventKind.MODEL_ADDED, "chat")
        raise RuntimeError
    assert store.models.all() == []
    assert store.events.recent(10) == []


def test_transactions_do_not_nest(store: Store) -> None:
    with pytest.raises(sqlite3.OperationalError), store.transaction():
        store.models.put(CHAT)
        with store.transaction():
            pass
    assert store.models.all() == []


def test_a_model_has_at_most_one_running_canary_and_one_unfinished_job(store: Store) -> None:
    store.canaries.put(CANARY)
    with pytest.raises(sqlite3.IntegrityError):
        store.canaries.put(msgspec.structs.replace(CANARY, id="canary-1-2"))
    store.canaries.put(msgspec.structs.replace(CANARY, phase=CanaryPhase.ABORTED))
    store.canaries.put(msgspec.structs.replace(CANARY, id="canary-1-2"))
    store.jobs.insert(1, JOB)
    with pytest.raises(sqlite3.IntegrityError):
        store.jobs.insert(2, msgspec.structs.replace(JOB, id="add-1-2"))
    store.jobs.save(msgspec.structs.replace(JOB, state=JobState.DONE))
    store.jobs.insert(2, msgspec.structs.replace(JOB, id="add-1-2"))
    assert [job.id for job in store.jobs.recent(5)] == ["add-1-2", "add-1-1"]
    assert [job.id for job in store.jobs.unfinished()] == ["add-1-2"]


@pytest.mark.parametrize("change", ["UPDATE events SET why = 'other'", "DELETE FROM events"])
def test_the_event_log_cannot_be_rewritten(tmp_path: Path, store: Store, change: str) -> None:
    store.events.log(NOW, "ann", EventKind.CANARY_SHARE, "chat", before="10 %", after="20 %", why="asked")
    other = sqlite3.connect(tmp_path / "llmgw.db")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        other.execute(change)
    other.close()
    (event,) = store.events.recent(10)
    assert (event.by, event.before, event.after, event.why, event.at) == ("ann", "10 %", "20 %", "asked", NOW)


def test_events_are_the_newest_in_order_of_time(store: Store) -> None:
    for number in range(5):
        store.events.log(NOW, "ann", EventKind.CANARY_SHARE, "chat" if number % 2 else "other", after=str(number))
    assert [event.after for event in store.events.recent(3)] == ["2", "3", "4"]
    assert [event.after for event in store.events.recent(3, "chat")] == ["1", "3"]


def test_samples_of_a_canary_are_kept_by_arm(store: Store) -> None:
    sample = ArmSample(model="chat", arm=Arm.CANARY, revision="abc", canary="c", outcomes={Outcome.OK: 2}, ttft={-3: 2})
    store.canaries.put_sample("c", Arm.CANARY, sample)
    store.canaries.put_sample("c", Arm.CANARY, sample)
    assert store.canaries.samples("c") == [sample]
    assert store.canaries.samples("other") == []


def test_a_rejected_revision_is_remembered_with_its_reason(store: Store) -> None:
    assert store.canaries.why_rejected("chat", ORIGIN) is None
    store.canaries.reject("chat", ORIGIN, NOW, "slow")
    store.canaries.reject("chat", ORIGIN, NOW, "slower")
    assert store.canaries.why_rejected("chat", ORIGIN) == "slower"
    assert store.canaries.why_rejected("other", ORIGIN) is None


def test_rejected_weights_are_known_by_their_content_under_another_commit(store: Store) -> None:
    rejected = msgspec.structs.replace(ORIGIN, contents=(RepoFile("x.gguf", 1, sha256="1" * 64),))
    store.canaries.reject("chat", rejected, NOW, "slow")
    same = msgspec.structs.replace(rejected, revision="b" * 40)
    other = msgspec.structs.replace(same, contents=(RepoFile("x.gguf", 1, sha256="2" * 64),))
    assert store.canaries.why_rejected("chat", same) == "slow"
    assert store.canaries.why_rejected("chat", ORIGIN) == "slow"
    assert store.canaries.why_rejected("chat", other) is None


def test_an_unknown_job_says_where_to_look(store: Store) -> None:
    with pytest.raises(LlmgwError, match="there is no job x"):
        store.jobs.get("x")


def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "llmgw.db"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(LlmgwError, match="cannot be read"):
        Store(path)
    assert path.read_bytes() == b"this is no database" * 100


def test_a_file_whose_pages_are_damaged_is_refused_before_anything_is_written_and_the_backup_is_named(
    tmp_path: Path,
) -> None:
    path = tmp_path / "llmgw.db"
    filled = Store(path)
    for number in range(200):
        filled.events.log(NOW, "ann", EventKind.CANARY_SHARE, "chat", after=str(number), why="x" * 200)
    filled.close()
    made = back_up(path, date(2026, 1, 2))
    whole = path.read_bytes()
    damaged = whole[:8192] + b"\xff" * 8192 + whole[16384:]
    path.write_bytes(damaged)
    with pytest.raises(LlmgwError, match="cannot be read as llmgw's database") as raised:
        Store(path)
    assert f"cp {made} {path}" in raised.value.hint
    assert path.read_bytes() == damaged
    assert made is not None
    path.write_bytes(made.read_bytes())
    again = Store(path)
    assert len(again.events.recent(500)) == 200
    again.close()


def test_a_full_disk_is_said_in_words_and_nothing_was_changed(tmp_path: Path, store: Store) -> None:
    store.models.put(CHAT)
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    big = msgspec.structs.replace(CHAT, name="big", description="x" * 100_000)
    with pytest.raises(StoreError, match="takes nothing now: database or disk is full"):
        store.models.put(big)
    with pytest.raises(StoreError, match="nothing was changed"), store.transaction():
        store.models.put(msgspec.structs.replace(CHAT, description="changed"))
        store.models.put(big)
    assert store.models.all() == [CHAT]
    store._connection.execute("PRAGMA max_page_count = 100000")
    with store.transaction():
        store.models.put(big)
    assert store.models.find("big") == big


def test_many_rows_at_once_that_cannot_be_written_are_said_in_words_too(store: Store) -> None:
    store._connection.execute("PRAGMA query_only = 1")
    with pytest.raises(StoreError, match="readonly"):
        store.processes.save_reports({"w0": 1})


def test_somebody_else_who_holds_the_file_is_told_of(tmp_path: Path, store: Store) -> None:
    store._connection.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(tmp_path / "llmgw.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="database is locked"), store.transaction():
        pass
    other.execute("ROLLBACK")
    other.close()
    with store.transaction():
        store.models.put(CHAT)


@pytest.mark.parametrize(
    ("name", "way_on"),
    [
        pytest.param("SQLITE_FULL", "make room on the disk of /state, then", id="full"),
        pytest.param("SQLITE_IOERR_WRITE", "see what the system's log says of it, then", id="a failing disk"),
        pytest.param("SQLITE_READONLY_DIRECTORY", "let the daemon's user write to /state/llmgw.db", id="read-only"),
        pytest.param("SQLITE_CANTOPEN", "let the daemon's user write to /state/llmgw.db", id="not to be opened"),
        pytest.param("SQLITE_BUSY_SNAPSHOT", "close the program that holds /state/llmgw.db", id="locked"),
        pytest.param("SQLITE_CORRUPT", "stop llmgwd, move /state/llmgw.db, llmgw.db-wal and", id="damaged"),
        pytest.param("SQLITE_NOTADB", "stop llmgwd, move /state/llmgw.db, llmgw.db-wal and", id="no database"),
    ],
)
def test_each_trouble_of_the_database_has_its_own_way_on(name: str, way_on: str) -> None:
    error = sqlite3.DatabaseError("why")
    error.sqlite_errorcode = getattr(sqlite3, name)
    with pytest.raises(StoreError) as raised, _in_words(Path("/state/llmgw.db")):
        raise error
    assert way_on in raised.value.hint


def test_a_start_that_is_locked_out_says_what_a_start_needs(tmp_path: Path, store: Store) -> None:
    other = sqlite3.connect(tmp_path / "llmgw.db", isolation_level=None)
    store.close()
    other.execute("PRAGMA journal_mode = DELETE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="database is locked; llmgwd was not started, and what runs") as raised:
        Store(tmp_path / "llmgw.db")
    assert raised.value.hint.endswith("open for writing, then start llmgwd again")
    other.close()


def test_what_was_acknowledged_is_synced_to_disk(store: Store) -> None:
    asked = {
        name: store._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
    }
    assert asked == {"journal_mode": "wal", "synchronous": 2}


def test_a_change_of_schema_leaves_a_copy_of_what_was(tmp_path: Path) -> None:
    path = tmp_path / "llmgw.db"
    old = sqlite3.connect(path)
    old.executescript(f"{MIGRATIONS[0]} PRAGMA user_version = 1;")
    old.execute("INSERT INTO models VALUES ('chat', ?)", (msgspec.json.encode(CHAT).decode(),))
    old.commit()
    old.close()
    store = Store(path)
    assert store.models.all() == [CHAT]
    store.close()
    copy = sqlite3.connect(tmp_path / "backups" / "llmgw-schema-1.db")
    assert copy.execute("PRAGMA user_version").fetchone() == (1,)
    assert copy.execute("SELECT name FROM models").fetchall() == [("chat",)]
    copy.close()


def test_a_newer_schema_is_refused(tmp_path: Path, store: Store) -> None:
    other = sqlite3.connect(tmp_path / "llmgw.db")
    other.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    other.close()
    with pytest.raises(LlmgwError, match="newer llmgw"):
        Store(tmp_path / "llmgw.db")
