"""The event log: one row a change, never rewritten (K12)."""

import sqlite3
from datetime import UTC, datetime

from llmgwd.protocol.states import EventKind
from llmgwd.protocol.views import EventView


class Events:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def log(
        self, at: datetime, by: str, what: EventKind, model: str, *, before: str = "", after: str = "", why: str = ""
    ) -> EventView:
        """Appends one row and returns it. Text only; never a prompt, an answer or a key."""
        cursor = self._connection.execute(
            "INSERT INTO events (at, by, what, model, before, after, why) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (at.timestamp(), by, what, model, before, after, why),
        )
        return EventView(cursor.lastrowid or 0, at, by, what, model, before, after, why)

    def happened(self, what: EventKind, model: str, after: str) -> bool:
        """Whether such a row was ever written."""
        row = self._connection.execute(
            "SELECT 1 FROM events WHERE what = ? AND model = ? AND after = ? LIMIT 1", (what, model, after)
        ).fetchone()
        return row is not None

    def recent(self, limit: int, model: str | None = None) -> list[EventView]:
        """The newest `limit`, in order of time."""
        where = "WHERE model = ?" if model is not None else ""
        values: tuple[object, ...] = (limit,) if model is None else (model, limit)
        rows = self._connection.execute(
            f"SELECT seq, at, by, what, model, before, after, why FROM events {where} ORDER BY seq DESC LIMIT ?",  # noqa: S608
            values,
        ).fetchall()
        return [
            EventView(seq, datetime.fromtimestamp(at, UTC), by, EventKind(what), *rest)
            for seq, at, by, what, *rest in reversed(rows)
        ]
