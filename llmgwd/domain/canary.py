"""A canary's life as a transition table."""

from datetime import datetime
from enum import StrEnum

import msgspec

from llmgwd.domain.catalog import Model, Origin, canary_name
from llmgwd.domain.errors import LlmgwError, refused, unusable
from llmgwd.domain.plan import Plan, Progress
from llmgwd.protocol.states import CanaryPhase


class CanaryEvent(StrEnum):
    """What can happen to a canary."""

    READY = "ready"
    ABORT = "abort"
    PROMOTE = "promote"
    PROMOTED = "promoted"
    REMOVED = "removed"
    FAIL = "fail"


class Canary(msgspec.Struct, frozen=True):
    """One canary's life, kept after its end."""

    id: str
    model: str
    origin: Origin
    stable_origin: Origin
    share: float
    by: str
    started: datetime
    phase: CanaryPhase = CanaryPhase.PREPARING
    ending: CanaryPhase | None = None
    """While it is being removed: what it will have ended as."""
    ended: datetime | None = None
    reason: str = ""
    plan: Plan = Plan((0.0,))
    progress: Progress | None = None
    """None until it serves."""
    look_s: float = 30.0
    """Length of a look: fixed for its life, since the evidence is kept by look."""
    ignores_load: bool = False
    """Whether its times count for promotion though its engine was idle while stable's was full."""
    runs_otherwise: str = ""
    """In what it differs from its model besides the weights."""

    @property
    def name(self) -> str:
        return canary_name(self.model)

    @property
    def runs(self) -> bool:
        return self.phase not in FINAL


FINAL = frozenset({CanaryPhase.PROMOTED, CanaryPhase.ABORTED, CanaryPhase.ROLLED_BACK, CanaryPhase.FAILED})

TRANSITIONS: dict[tuple[CanaryPhase, CanaryEvent], CanaryPhase] = {
    (CanaryPhase.PREPARING, CanaryEvent.READY): CanaryPhase.SERVING,
    (CanaryPhase.PREPARING, CanaryEvent.ABORT): CanaryPhase.REMOVING,
    (CanaryPhase.PREPARING, CanaryEvent.FAIL): CanaryPhase.REMOVING,
    (CanaryPhase.SERVING, CanaryEvent.ABORT): CanaryPhase.REMOVING,
    # Its job was given up in its last step, after several starts.
    (CanaryPhase.SERVING, CanaryEvent.FAIL): CanaryPhase.REMOVING,
    (CanaryPhase.SERVING, CanaryEvent.PROMOTE): CanaryPhase.PROMOTING,
    (CanaryPhase.PROMOTING, CanaryEvent.PROMOTED): CanaryPhase.PROMOTED,
    # A removal that failed half-way is asked for again: it stays what it is.
    (CanaryPhase.REMOVING, CanaryEvent.ABORT): CanaryPhase.REMOVING,
    (CanaryPhase.REMOVING, CanaryEvent.FAIL): CanaryPhase.REMOVING,
}


def after(canary: Canary, event: CanaryEvent) -> CanaryPhase:
    """The phase that follows. `removed` ends it as its `ending` says. Raises when the event cannot happen now."""
    if canary.phase is CanaryPhase.REMOVING and event is CanaryEvent.REMOVED:
        return canary.ending or CanaryPhase.ABORTED
    following = TRANSITIONS.get((canary.phase, event))
    if following is None:
        raise _cannot(canary, event)
    return following


def _cannot(canary: Canary, event: CanaryEvent) -> LlmgwError:
    name = canary.model
    if canary.phase is CanaryPhase.PROMOTED or (canary.phase is CanaryPhase.PROMOTING and event is CanaryEvent.ABORT):
        return already_promoted(name)
    if canary.phase is CanaryPhase.PREPARING:
        return refused(
            "canary_not_ready",
            f"{name}'s canary is not serving yet",
            hint=f"see what it waits for with `llmgw ctl model canaries {name}`",
        )
    if canary.phase is CanaryPhase.REMOVING:
        return refused("canary_going", f"{name}'s canary is being taken out")
    return refused(f"canary_{canary.phase}", f"{name}'s canary is {canary.phase.replace('_', ' ')}")


def already_promoted(model: str) -> LlmgwError:
    return refused(
        "already_promoted",
        f"{model}'s canary is already promoted",
        hint=f"to go back to the weights before it: llmgw ctl model rollback {model}",
    )


def check_share(percent: float) -> None:
    """Raises unless it is a share: a number from 0 to 100."""
    if not 0 <= percent <= 100:  # also refuses NaN
        raise unusable("bad_percent", f"a share of {percent:g} is not possible: give a percent from 0 to 100")


def no_canary(model: Model, verb: str) -> LlmgwError:
    # Without a repository nothing newer is found by itself.
    how = "--percent N" if model.origin.repo else "--path FILE"
    return refused(
        "no_canary",
        f"{model.name} has no canary to {verb}",
        hint=f"start one with `llmgw ctl model canary {model.name} {how}`",
    )
