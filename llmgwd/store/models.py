"""The catalog on disk."""

import sqlite3

import msgspec

from llmgwd.domain.catalog import Model, no_such_model

_decode = msgspec.json.Decoder(Model).decode


class Models:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def all(self) -> list[Model]:
        """Every model, canaries' own rows included, by name."""
        return [_decode(row[0]) for row in self._connection.execute("SELECT record FROM models ORDER BY name")]

    def find(self, name: str) -> Model | None:
        row = self._connection.execute("SELECT record FROM models WHERE name = ?", (name,)).fetchone()
        return _decode(row[0]) if row else None

    def get(self, name: str) -> Model:
        """The model of this name, not a canary's row. Raises when there is none."""
        model = self.find(name)
        if model is None or model.canary_of is not None:
            raise no_such_model(name, self.all())
        return model

    def put(self, model: Model) -> None:
        self._connection.execute(
            "INSERT INTO models VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET record = excluded.record",
            (model.name, msgspec.json.encode(model).decode()),
        )

    def delete(self, name: str) -> None:
        self._connection.execute("DELETE FROM models WHERE name = ?", (name,))
