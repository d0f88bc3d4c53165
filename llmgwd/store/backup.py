"""Copies of the database beside it: one a day, the newest of them kept, and one before each change of schema."""

import logging
import os
import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

import anyio

from llmgwd.private import make_private

log = logging.getLogger(__name__)

KEPT = 7
"""Daily copies."""
FOLDER = "backups"
LOOK_EVERY_S = 3600.0


async def keep_backed_up(database: Path) -> None:
    """Makes each day's copy, until cancelled; one that fails is said, and tried again at the next look."""
    while True:
        try:
            made = await anyio.to_thread.run_sync(partial(back_up, database, datetime.now(UTC).date()))
        except (OSError, sqlite3.Error) as error:
            log.error("database not backed up path=%s why=%s", database, error)
        else:
            if made is not None:
                log.info("database backed up path=%s", made)
        await anyio.sleep(LOOK_EVERY_S)


def newest_backup(database: Path) -> Path | None:
    """The newest daily copy of this database."""
    return max(_daily(database), default=None)


def kept_before(database: Path, version: int) -> Path:
    """Where the copy is that was made before the database left this schema."""
    return database.parent / FOLDER / f"{database.stem}-schema-{version}.db"


def back_up(database: Path, day: date) -> Path | None:
    """Makes the copy of this day, unless there is one, and removes the oldest beyond KEPT; what was made.

    Blocks; to be called in a thread. A daemon that goes on writing is not held up. Raises OSError or sqlite3.Error.
    """
    target = database.parent / FOLDER / f"{database.stem}-{day.isoformat()}.db"
    made = None
    if not target.exists():
        copy_to(database, target)
        made = target
    for old in sorted(_daily(database))[:-KEPT]:
        old.unlink(missing_ok=True)
    return made


def copy_to(database: Path, target: Path) -> None:
    """A whole copy, there for good once it bears its name."""
    make_private(target.parent)
    partial = target.with_suffix(".new")
    partial.unlink(missing_ok=True)
    try:
        # A connection of its own: it reads one moment of the database, whatever is written meanwhile.
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(partial)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _daily(database: Path) -> list[Path]:
    return list((database.parent / FOLDER).glob(f"{database.stem}-[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9].db"))
