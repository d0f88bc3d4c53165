"""A few of the kills of `make chaos`, for every day."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgwd.domain.jobs import STEPS
from llmgwd.protocol.states import JobKind
from tests.chaos.lane import Lane
from tests.chaos.points import Moment, Point, Turn, points_of
from tests.support.house import house_on


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[Lane]:
    with house_on(tmp_path, started=False) as house:
        house.settings["gateway"]["workers"] = 2
        house.program = [sys.executable, "-m", "tests.chaos.daemon"]
        made = Lane(house, replicas=1)
        house.start()
        made.add_chat()
        yield made


def test_there_are_kills_around_every_step_of_every_job() -> None:
    points = [point for kind in JobKind for point in points_of(kind)]
    assert len(points) == len(set(points)) > 100
    always = set(Moment) - {Moment.BEFORE_ROUTES}
    for kind, steps in STEPS.items():
        for step in steps:
            assert always <= {point.moment for point in points if (point.kind, point.step) == (kind, step)}


@pytest.mark.parametrize("moment", [Moment.BEFORE_ROUTES, Moment.BEFORE_PUBLISH])
def test_a_canary_and_its_promotion_survive_the_end_of_the_daemon(lane: Lane, moment: Moment) -> None:
    assert lane.canary(Point(JobKind.CANARY, "split", moment))
    lane.promote(Point(JobKind.PROMOTE, "catalog", moment))
    assert lane.tally.broken == []
    assert lane.tally.kills["daemon"] == 2
    assert lane.tally.ends["done"] == 2


def test_starts_and_stops_that_are_cut_short_leave_what_serves_as_it_is(lane: Lane) -> None:
    assert lane.canary(None)
    for turn in Turn:
        lane.turn(turn)
    assert lane.tally.broken == []
    assert lane.tally.kills["daemon"] == len(Turn)
