"""Which requests of a session are counted for the verdict."""

from typing import cast

import pytest

from llmgwd.gateway import looks as module
from llmgwd.gateway.looks import HOUR_S, Looks
from llmgwd.gateway.table import ModelEntry
from llmgwd.protocol.samples import Arm
from llmgwd.verdict.counts import MOST_PER_KEY


class Model:
    canary_id = "c"
    look_s = 30.0
    share = 10.0


class Worker:
    """A worker's looks, with a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 1000.0 * HOUR_S
        self.looks = Looks(lambda: self.now_s)

    def ask(self, session: bytes, times: int = 1) -> int:
        """How many of them counted."""
        model = cast("ModelEntry", Model())
        asked = [self.looks.arrived(model, Arm.CANARY, session, textless=False) for _ in range(times)]
        return sum(key is not None for key in asked)


def test_of_one_session_so_many_requests_count_every_hour() -> None:
    worker = Worker()
    for _ in range(3):
        assert worker.ask(b"busy", 1000) == MOST_PER_KEY
        worker.now_s += HOUR_S
    samples = worker.looks.take()
    assert sum(sample.arrived for sample in samples) == 3 * MOST_PER_KEY
    assert sum(sample.left_out for sample in samples) == 3 * (1000 - MOST_PER_KEY)
    assert sum(sample.keys for sample in samples) == 1


def test_requests_without_a_session_all_count() -> None:
    assert Worker().ask(b"", 1000) == 1000


def test_new_sessions_count_however_many_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEYS", 50)
    worker = Worker()
    assert sum(worker.ask(b"%d" % number) for number in range(500)) == 500
    assert sum(sample.keys for sample in worker.looks.take()) == 500


def test_the_key_whose_hour_began_first_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEYS", 2)
    worker = Worker()
    worker.ask(b"first", MOST_PER_KEY)
    worker.ask(b"second", MOST_PER_KEY)
    worker.now_s += HOUR_S
    assert worker.ask(b"first", 2 * MOST_PER_KEY) == MOST_PER_KEY
    worker.ask(b"third")
    assert worker.ask(b"first") == 0
    assert worker.ask(b"second") == 1


def test_a_clock_that_is_set_back_renews_too() -> None:
    worker = Worker()
    worker.ask(b"busy", MOST_PER_KEY)
    worker.now_s -= 5 * HOUR_S
    assert worker.ask(b"busy", 2 * MOST_PER_KEY) == MOST_PER_KEY
