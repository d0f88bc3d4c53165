"""What starts took, as it is kept."""

from datetime import UTC, datetime
from pathlib import Path

from llmgwd.domain.estimate import Footprint
from llmgwd.store.footprints import KEPT
from llmgwd.store.store import Store


def footprint(model: str = "chat", runs: str = "so", weights: int = 100, private: int = 5) -> Footprint:
    return Footprint(model, runs, weights, 0, private, True, 0, datetime(2026, 12, 1, tzinfo=UTC))


def test_the_last_one_of_the_same_weights_counts(tmp_path: Path) -> None:
    found = Store(tmp_path / "llmgw.db").footprints
    for each in (footprint(), footprint(private=7), footprint(runs="otherwise"), footprint(model="other")):
        found.put(each)
    assert found.of("chat", "so") == [footprint(private=7)]
    found.forget("chat")
    assert found.of("chat", "so") == []
    assert found.of("other", "so") == [footprint(model="other")]


def test_not_more_than_the_newest_are_kept(tmp_path: Path) -> None:
    found = Store(tmp_path / "llmgw.db").footprints
    for number in range(KEPT + 5):
        found.put(footprint(weights=number))
    assert sorted(each.weights_bytes for each in found.of("chat", "so")) == list(range(5, KEPT + 5))
