"""Which recipe each kind of job follows."""

from llmgwd.jobs import canary, move, presence, promote
from llmgwd.jobs.runner import Recipe
from llmgwd.protocol.states import JobKind

RECIPES: dict[JobKind, Recipe] = {
    JobKind.ADD: presence.ADD,
    JobKind.CANARY: canary.RECIPE,
    JobKind.PROMOTE: promote.RECIPE,
    JobKind.UPDATE: move.UPDATE,
    JobKind.ROLLBACK: move.ROLLBACK,
    JobKind.REMOVE: presence.REMOVE,
}
