"""The SQLite file: opened, brought to the present schema, written in one transaction at a time."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmgwd.domain.errors import LlmgwError

BUSY_TIMEOUT_S = 2.0
"""Nobody but this daemon writes to the file; a person's tool that holds it for a moment is waited for."""

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
)


def open_database(path: Path) -> sqlite3.Connection:
    """The database at its present schema. Raises LlmgwError when the file is damaged or from a newer llmgw."""
    try:
        connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_S)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        _migrate(connection, path)
    except sqlite3.DatabaseError as error:
        raise LlmgwError(
            "bad_database",
            f"{path} cannot be read as llmgw's database: {error}",
            hint="move it away to start afresh, or put a backup in its place; it was left as it is",
        ) from error
    return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise LlmgwError(
            "newer_database",
            f"{path} has schema {version}, this llmgwd knows {len(MIGRATIONS)}: it was written by a newer llmgw",
            hint="run that newer llmgwd; the file was left as it is",
        )
    for number in range(version, len(MIGRATIONS)):
        connection.executescript(f"BEGIN; {MIGRATIONS[number]} PRAGMA user_version = {number + 1}; COMMIT;")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One write transaction; what was written is undone when the block raises. Not to be nested."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
