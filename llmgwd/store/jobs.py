"""The job table."""

import sqlite3

import msgspec

from llmgwd.domain.errors import unknown
from llmgwd.domain.jobs import Job

_decode = msgspec.json.Decoder(Job).decode


class Jobs:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def next_seq(self) -> int:
        (highest,) = self._connection.execute("SELECT COALESCE(MAX(seq), 0) FROM jobs").fetchone()
        return int(highest) + 1

    def insert(self, seq: int, job: Job) -> None:
        self._connection.execute(
            "INSERT INTO jobs VALUES (?, ?, ?, ?, ?)",
            (seq, job.id, job.model, job.state.value, msgspec.json.encode(job).decode()),
        )

    def save(self, job: Job) -> None:
        self._connection.execute(
            "UPDATE jobs SET state = ?, record = ? WHERE id = ?",
            (job.state.value, msgspec.json.encode(job).decode(), job.id),
        )

    def get(self, job: str) -> Job:
        """Raises when there is no such job."""
        row = self._connection.execute("SELECT record FROM jobs WHERE id = ?", (job,)).fetchone()
        if row is None:
            raise unknown("no_such_job", f"there is no job {job}", hint="see `llmgw ctl jobs list`")
        return _decode(row[0])

    def recent(self, limit: int) -> list[Job]:
        """The newest first."""
        rows = self._connection.execute("SELECT record FROM jobs ORDER BY seq DESC LIMIT ?", (limit,))
        return [_decode(row[0]) for row in rows]

    def unfinished(self) -> list[Job]:
        """Those that are pending or running, oldest first."""
        rows = self._connection.execute("SELECT record FROM jobs WHERE state IN ('pending', 'running') ORDER BY seq")
        return [_decode(row[0]) for row in rows]

    def of(self, model: str) -> Job | None:
        """The unfinished job of a model."""
        row = self._connection.execute(
            "SELECT record FROM jobs WHERE model = ? AND state IN ('pending', 'running')", (model,)
        ).fetchone()
        return _decode(row[0]) if row else None
