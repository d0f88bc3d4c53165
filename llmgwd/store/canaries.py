"""Canaries' lives on disk, with what their arms did and which revisions were turned down."""

import sqlite3
from datetime import datetime

import msgspec

from llmgwd.domain.canary import FINAL, Canary
from llmgwd.domain.catalog import Origin
from llmgwd.protocol.samples import Arm, ArmSample
from llmgwd.verdict.evidence import Evidence

_decode = msgspec.json.Decoder(Canary).decode
_decode_sample = msgspec.json.Decoder(ArmSample).decode
_decode_evidence = msgspec.json.Decoder(Evidence).decode
_RUNS = "phase NOT IN ({})".format(", ".join(f"'{phase.value}'" for phase in sorted(FINAL)))


class Canaries:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def running(self) -> list[Canary]:
        """Those that have not ended, by model."""
        return [_decode(row[0]) for row in self._select(f"WHERE {_RUNS} ORDER BY model")]

    def all(self, model: str | None = None, limit: int = 50) -> list[Canary]:
        """The newest first, ended ones included."""
        where = "WHERE model = :model" if model is not None else ""
        rows = self._select(f"{where} ORDER BY started DESC LIMIT :limit", model=model, limit=limit)
        return [_decode(row[0]) for row in rows]

    def of(self, model: str) -> Canary | None:
        """The one that this model has now."""
        row = self._select(f"WHERE model = :model AND {_RUNS}", model=model).fetchone()
        return _decode(row[0]) if row else None

    def find(self, canary: str) -> Canary | None:
        row = self._select("WHERE id = :id", id=canary).fetchone()
        return _decode(row[0]) if row else None

    def put(self, canary: Canary) -> None:
        self._connection.execute(
            "INSERT INTO canaries VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET phase = excluded.phase, record = excluded.record",
            (
                canary.id,
                canary.model,
                canary.phase.value,
                canary.started.timestamp(),
                msgspec.json.encode(canary).decode(),
            ),
        )

    def reject(self, model: str, origin: Origin, at: datetime, why: str, *, otherwise: str = "") -> None:
        """Remembers that these weights were rolled back (K10), or that they were when they ran `otherwise`."""
        self._connection.executemany(
            "INSERT INTO rejected VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET at = excluded.at, why = excluded.why",
            [(model, repo, revision, at.timestamp(), why) for repo, revision in _keys(origin, otherwise)],
        )

    def why_rejected(self, model: str, origin: Origin, *, otherwise: str = "") -> str | None:
        """Why this revision or its content was rolled back, run `otherwise` if that is given; None when neither was."""
        for repo, revision in _keys(origin, otherwise):
            row = self._connection.execute(
                "SELECT why FROM rejected WHERE model = ? AND repo = ? AND revision = ?", (model, repo, revision)
            ).fetchone()
            if row:
                return str(row[0])
        return None

    def samples(self, canary: str) -> list[ArmSample]:
        """What each arm did so far, as last saved."""
        rows = self._connection.execute("SELECT record FROM samples WHERE canary = ?", (canary,))
        return [_decode_sample(row[0]) for row in rows]

    def put_sample(self, canary: str, arm: Arm, sample: ArmSample) -> None:
        self._connection.execute(
            "INSERT INTO samples VALUES (?, ?, ?) ON CONFLICT (canary, arm) DO UPDATE SET record = excluded.record",
            (canary, arm.value, msgspec.json.encode(sample).decode()),
        )

    def evidence(self, canary: str) -> Evidence | None:
        """What its verdict rests on, as last saved."""
        row = self._connection.execute("SELECT record FROM evidence WHERE canary = ?", (canary,)).fetchone()
        return _decode_evidence(row[0]) if row else None

    def put_evidence(self, canary: str, evidence: Evidence) -> None:
        self._connection.execute(
            "INSERT INTO evidence VALUES (?, ?) ON CONFLICT (canary) DO UPDATE SET record = excluded.record",
            (canary, msgspec.json.encode(evidence).decode()),
        )

    def _select(self, rest: str, **values: object) -> sqlite3.Cursor:
        return self._connection.execute(f"SELECT record FROM canaries {rest}", values)  # noqa: S608 - `rest` is ours


def _keys(origin: Origin, otherwise: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"{repo}, {otherwise}", revision) for repo, revision in origin.keys) if otherwise else origin.keys
