"""What replicas took of memory when they were last started, by model and how they ran."""

import sqlite3

import msgspec

from llmgwd.domain.estimate import Footprint

KEPT = 20
"""Of each model, the newest."""

_decode = msgspec.json.Decoder(Footprint).decode


class Footprints:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def of(self, model: str, runs: str) -> list[Footprint]:
        rows = self._connection.execute("SELECT record FROM footprints WHERE model = ? AND runs = ?", (model, runs))
        return [_decode(row[0]) for row in rows]

    def put(self, found: Footprint) -> None:
        """Takes the place of one of weights of the same size."""
        self._connection.execute(
            "REPLACE INTO footprints (model, runs, weights_bytes, record) VALUES (?, ?, ?, ?)",
            (found.model, found.runs, found.weights_bytes, msgspec.json.encode(found).decode()),
        )
        self._connection.execute(
            "DELETE FROM footprints WHERE model = ? AND seq NOT IN "
            "(SELECT seq FROM footprints WHERE model = ? ORDER BY seq DESC LIMIT ?)",
            (found.model, found.model, KEPT),
        )

    def forget(self, model: str) -> None:
        self._connection.execute("DELETE FROM footprints WHERE model = ?", (model,))
