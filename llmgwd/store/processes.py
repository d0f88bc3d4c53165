"""The processes that the daemon started, so that a start after a crash finds them again."""

import sqlite3
from typing import NamedTuple


class ProcessRow(NamedTuple):
    """`identity` tells the process from a later one with its pid; see `llmgwd.process.identity`."""

    pid: int
    identity: str
    what: str


class Processes:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def all(self) -> list[ProcessRow]:
        return [ProcessRow(*row) for row in self._connection.execute("SELECT pid, identity, what FROM processes")]

    def put(self, row: ProcessRow) -> None:
        self._connection.execute("INSERT OR REPLACE INTO processes VALUES (?, ?, ?)", row)

    def delete(self, pid: int) -> None:
        self._connection.execute("DELETE FROM processes WHERE pid = ?", (pid,))
