"""What was measured, and the numbers made of it over rounds."""

import statistics
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any


@dataclass
class Results:
    """Grows while measuring; read-only afterwards."""

    rounds: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    """By subject, then figure (`busy`, `paced`, `streams`, `crowd`, `churn`): one record a round."""
    reported: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """What workers of llmgw told the daemon, by subject, then `whole` or `stream`: requests by outcome, and sums."""

    def add(self, subject: str, figure: str, record: object) -> None:
        """Takes one round's record, a dataclass."""
        assert is_dataclass(record)
        assert not isinstance(record, type)
        self.rounds.setdefault(subject, {}).setdefault(figure, []).append(asdict(record))

    def values(self, subject: str, figure: str, name: str) -> list[Any]:
        """One number of every round; empty when it was not measured."""
        return [record[name] for record in self.rounds.get(subject, {}).get(figure, [])]

    def median(self, subject: str, figure: str, name: str) -> float | None:
        values = self.values(subject, figure, name)
        return statistics.median(values) if values else None

    def total(self, subject: str, figure: str, name: str) -> float | None:
        values = self.values(subject, figure, name)
        return sum(values) if values else None

    def added(self, subject: str, figure: str, name: str) -> float | None:
        """The median over rounds of a number less that of `direct` in the same round."""
        pairs = zip(self.values(subject, figure, name), self.values("direct", figure, name), strict=False)
        differences = [own - direct for own, direct in pairs]
        return statistics.median(differences) if differences else None

    def ratio(self, subject: str, base: str, figure: str, name: str) -> float | None:
        """Of the two medians."""
        own, other = self.median(subject, figure, name), self.median(base, figure, name)
        return own / other if own is not None and other else None
