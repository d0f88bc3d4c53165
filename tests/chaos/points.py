"""The points at which a daemon is killed: between any two things that it does for a job."""

from enum import StrEnum
from typing import NamedTuple

from llmgwd.domain.jobs import STEPS
from llmgwd.protocol.states import JobKind

FILE_VARIABLE = "LLMGW_TEST_POINT"
VERB = "a verb without a job"
"""The point at which what such a verb changes is on disk, and the gateway does not follow it yet."""


class Turn(StrEnum):
    """The points at which a daemon is killed that is starting or stopping."""

    ADOPTED = "what runs was found"
    DECLARED = "the declared models are served"
    RESUMING = "jobs are about to go on"
    RESUMED = "jobs go on"
    STOPPING = "jobs are left, nothing was ended"


class Moment(StrEnum):
    BEFORE_INTENT = "before intent"
    AFTER_INTENT = "after intent"
    BEFORE_ROUTES = "before routes"
    AFTER_ACT = "after act"
    BEFORE_PUBLISH = "before publish"


class Point(NamedTuple):
    kind: JobKind
    step: str
    moment: Moment

    def __str__(self) -> str:
        return "/".join(self)


MOVES_ROUTES = {
    (JobKind.ADD, "replicas"),
    (JobKind.CANARY, "split"),
    (JobKind.PROMOTE, "catalog"),
    (JobKind.PROMOTE, "replicas"),
    (JobKind.UPDATE, "replicas"),
    (JobKind.ROLLBACK, "replicas"),
    (JobKind.REMOVE, "routes"),
    (JobKind.REMOVE, "replicas"),
}
"""The steps that publish routes."""


def points_of(kind: JobKind) -> list[Point]:
    """In the order in which a job comes to them."""
    return [
        Point(kind, step, moment)
        for step in STEPS[kind]
        for moment in Moment
        if moment is not Moment.BEFORE_ROUTES or (kind, step) in MOVES_ROUTES
    ]
