"""The processes that were started and not seen to end: what the next life of the daemon looks for (K13)."""

import sqlite3
from collections.abc import Mapping

from llmgwd.domain.processes import ProcessKind, ProcessRecord


class Processes:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def all(self, kind: ProcessKind) -> list[ProcessRecord]:
        """In the order they were started."""
        rows = self._connection.execute(
            "SELECT id, pid, identity, about, reports FROM processes WHERE kind = ? ORDER BY rowid", (kind.value,)
        )
        return [
            ProcessRecord(name, kind, pid, identity, about.encode(), reports)
            for name, pid, identity, about, reports in rows
        ]

    def put(self, record: ProcessRecord) -> None:
        """Writes a process down, or what is known of it now; its `reports` are left as they are."""
        self._connection.execute(
            "INSERT INTO processes (id, kind, pid, identity, about) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
            "SET pid = excluded.pid, identity = excluded.identity, about = excluded.about",
            (record.id, record.kind.value, record.pid, record.identity, record.about.decode()),
        )

    def forget(self, process: str) -> None:
        self._connection.execute("DELETE FROM processes WHERE id = ?", (process,))

    def save_reports(self, last: Mapping[str, int]) -> None:
        """By worker, the last report whose samples are saved; to be called in the transaction that saves them."""
        self._connection.executemany("UPDATE processes SET reports = ? WHERE id = ?", [(n, w) for w, n in last.items()])
