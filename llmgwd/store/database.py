"""The SQLite file: opened, brought to the present schema, written in one transaction at a time."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from llmgwd.domain.errors import LlmgwError
from llmgwd.private import make_file_private
from llmgwd.store.backup import copy_to, kept_before, newest_backup

BUSY_TIMEOUT_S = 0.25
"""Nobody but this daemon writes to the file; a person's tool that holds it for a moment is waited for.

The event loop stands still meanwhile, so it is short: what has to be written is tried again by who writes it."""

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE models (name TEXT PRIMARY KEY, record TEXT NOT NULL);
    CREATE TABLE canaries (
        id TEXT PRIMARY KEY, model TEXT NOT NULL, phase TEXT NOT NULL, started REAL NOT NULL, record TEXT NOT NULL
    );
    CREATE UNIQUE INDEX one_canary_a_model ON canaries (model)
        WHERE phase NOT IN ('promoted', 'aborted', 'rolled_back', 'failed');
    CREATE TABLE rejected (
        model TEXT NOT NULL, repo TEXT NOT NULL, revision TEXT NOT NULL, at REAL NOT NULL, why TEXT NOT NULL,
        PRIMARY KEY (model, repo, revision)
    );
    CREATE TABLE jobs (
        seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, model TEXT NOT NULL, state TEXT NOT NULL, record TEXT NOT NULL
    );
    CREATE UNIQUE INDEX one_job_a_model ON jobs (model) WHERE state IN ('pending', 'running');
    CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, by TEXT NOT NULL, what TEXT NOT NULL,
        model TEXT NOT NULL, before TEXT NOT NULL, after TEXT NOT NULL, why TEXT NOT NULL
    );
    CREATE TRIGGER events_are_never_changed BEFORE UPDATE ON events BEGIN
        SELECT RAISE(ABORT, 'the event log is append-only');
    END;
    CREATE TRIGGER events_are_never_deleted BEFORE DELETE ON events BEGIN
        SELECT RAISE(ABORT, 'the event log is append-only');
    END;
    CREATE TABLE samples (canary TEXT NOT NULL, arm TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (canary, arm));
    """,
    "CREATE TABLE evidence (canary TEXT PRIMARY KEY, record TEXT NOT NULL);",
    """
    CREATE TABLE processes (
        id TEXT PRIMARY KEY, kind TEXT NOT NULL, pid INTEGER NOT NULL, identity TEXT NOT NULL, about TEXT NOT NULL,
        reports INTEGER NOT NULL DEFAULT 0
    );
    """,
    """
    CREATE TABLE footprints (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, model TEXT NOT NULL, runs TEXT NOT NULL, weights_bytes INTEGER NOT NULL,
        record TEXT NOT NULL, UNIQUE (model, runs, weights_bytes)
    );
    """,
)

_PRIMARY = 0xFF
"""SQLite's primary result code is the lowest byte of an extended one."""
_WAYS_ON = {
    sqlite3.SQLITE_FULL: "make room on the disk of {folder}",
    sqlite3.SQLITE_IOERR: "make room on the disk of {folder}, or see what the system's log says of it",
    sqlite3.SQLITE_READONLY: "let the daemon's user write to {path} and its folder, or mount the disk writable",
    sqlite3.SQLITE_CANTOPEN: "let the daemon's user write to {path} and its folder, or mount the disk writable",
    sqlite3.SQLITE_BUSY: "close the program that holds {path} open for writing",
}
"""What a person does about a database that takes nothing, by SQLite's primary code."""
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class StoreError(LlmgwError):
    """The database takes nothing now: a full disk, one that fails, somebody else's lock. `why` is SQLite's word."""

    def __init__(
        self, why: str, so: str = "nothing was changed, and what serves goes on serving", *, hint: str = ""
    ) -> None:
        super().__init__("store", f"the daemon's database takes nothing now: {why}; {so}", hint=hint)
        self.why = why


class Connection(sqlite3.Connection):
    """Raises StoreError where it cannot write, or finds the file damaged."""

    path = Path("llmgw.db")

    def execute(self, *args: Any) -> sqlite3.Cursor:
        with _in_words(self.path):
            return super().execute(*args)

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        with _in_words(self.path):
            return super().executemany(*args)


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if (way_on := _way_on(error, path)) is not None:
            raise StoreError(str(error), hint=f"{way_on}, then ask again") from error
        if _code(error) in _DAMAGED:
            raise StoreError(str(error), hint=f"stop llmgwd, {_put_back(path, newest_backup(path))}") from error
        raise


def _code(error: sqlite3.Error) -> int:
    # Errors of the Python module itself have no code.
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY


def _way_on(error: sqlite3.Error, path: Path) -> str | None:
    """None when it is not that the database takes nothing."""
    way_on = _WAYS_ON.get(_code(error))
    return way_on and way_on.format(path=path, folder=path.parent)


def _not_opened(path: Path, error: sqlite3.DatabaseError) -> LlmgwError:
    """Why there is no start."""
    way_on = _way_on(error, path)
    if way_on is None:
        return _damaged(path, str(error))
    so = "llmgwd was not started, and what runs was left as it is"
    return StoreError(str(error), so, hint=f"{way_on}, then start llmgwd again")


def open_database(path: Path) -> Connection:
    """The database at its present schema. Raises LlmgwError when the file is damaged or from a newer llmgw."""
    try:
        version = _check(path) if path.exists() else 0
        # SQLite gives the files beside it the mode that the database has when they are made.
        for file in (path, *(beside for end in ("-wal", "-shm") if (beside := Path(f"{path}{end}")).exists())):
            make_file_private(file)
        connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_S, factory=Connection)
        connection.path = path
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        if 0 < version < len(MIGRATIONS):
            copy_to(path, kept_before(path, version))
        for number in range(version, len(MIGRATIONS)):
            connection.executescript(f"BEGIN; {MIGRATIONS[number]} PRAGMA user_version = {number + 1}; COMMIT;")
    except StoreError as error:
        assert isinstance(error.__cause__, sqlite3.DatabaseError)
        raise _not_opened(path, error.__cause__) from error
    except sqlite3.DatabaseError as error:
        raise _not_opened(path, error) from error
    return connection


def _check(path: Path) -> int:
    """Its schema's version. Raises LlmgwError unless it is whole and one that this llmgwd knows."""
    # Read-only: a file that is refused stays as it is, to the byte.
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise LlmgwError(
                "newer_database",
                f"{path} has schema {version}, this llmgwd knows {len(MIGRATIONS)}: it was written by a newer llmgw",
                hint=f"run that newer llmgwd, or go back: {_put_back(path, kept_before(path, len(MIGRATIONS)))}"
                "; the file was left as it is",
            )
        problems = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
    if problems != ["ok"]:
        raise _damaged(path, "; ".join(problems))
    return int(version)


def _damaged(path: Path, why: str) -> LlmgwError:
    return LlmgwError(
        "bad_database",
        f"{path} cannot be read as llmgw's database: {why}",
        hint=f"{_put_back(path, newest_backup(path))}; the file was left as it is",
    )


def _put_back(path: Path, backup: Path | None) -> str:
    away = f"move {path}, {path.name}-wal and {path.name}-shm away"
    if backup is None or not backup.exists():
        return f"{away} to start afresh, since there is no backup"
    return f"{away}, then `cp {backup} {path}` puts the backup of that name in its place"


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """One write transaction; what was written is undone when the block raises, or its end cannot be written.

    Not to be nested.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # on a full disk SQLite may have rolled back by itself
            with suppress(StoreError):
                connection.execute("ROLLBACK")
        raise
