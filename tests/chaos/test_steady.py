"""A few turns of `make steady`, for every day."""

from collections import Counter
from pathlib import Path

from tests.chaos.steady import steady, steady_house


def test_no_request_fails_through_every_verb_a_reload_and_restarts(tmp_path: Path) -> None:
    done: Counter[str] = Counter()
    with steady_house(tmp_path) as house:
        load = steady(house, 600, 50, lambda what: done.update([what.partition(":")[0]]))
        shown = house.model()
        assert (shown["ready"], house.canary(), len(house.engine_pids())) == (2, None, 2)
    assert load.problems == []
    assert load.answered >= 600
    assert load.arms["canary"] > 20
    assert {"canary", "percent", "promote", "rollback", "reload", "abort"} < set(done)
