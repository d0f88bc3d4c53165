"""Which arm a request goes to. Holds the one thing that choice remembers: where each split stands."""

from collections.abc import Collection
from enum import Enum

from llmgwd.domain.split import advance, phase, sticks_to_canary
from llmgwd.gateway.answers import RefusedError
from llmgwd.gateway.table import ArmEntry, ModelEntry, Table
from llmgwd.protocol.samples import Arm

_SHOWN = 200
"""Characters of an unknown name that are repeated."""
_RETRY_LINE = b"Retry-After: 1\r\n"


class Cause(Enum):
    """Why a request goes to an arm."""

    SPLIT = "split"
    FORCED = "forced"
    """The request insisted on it."""
    STAND_IN = "stand-in"
    """The other arm, whose turn it was, could not take it."""
    RESCUE = "rescue"
    """The canary failed it."""
    FALLBACK = "fallback"
    """The model that was asked for could not answer."""

    def __init__(self, word: str) -> None:
        self.is_compared = word == "split"
        """Whether it belongs in a comparison of the arms: only what the split sent there does."""
        self.is_forced = word == "forced"
        self.stands_in = word == "stand-in"


class Choice:
    """An arm for one request, and why that one."""

    __slots__ = ("arm", "cause", "model")

    def __init__(self, model: ModelEntry, arm: ArmEntry, cause: Cause) -> None:
        self.model = model
        self.arm = arm
        self.cause = cause


class Splits:
    """The phase of every model's split in this worker; it goes on through new tables and shares."""

    __slots__ = ("_phases", "_worker")

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._phases: dict[str, int] = {}

    def choose(self, model: ModelEntry, session: bytes, arm: bytes) -> Choice:
        """The arm for a request; `session` and `arm` are empty when not given. Raises RefusedError for a wrong arm."""
        if arm:
            return Choice(model, _forced(model, arm), Cause.FORCED)
        canary = model.canary
        if canary is None or not canary.replicas:
            # The split does not move: a canary that is away must not find its turns taken.
            return Choice(model, model.stable, Cause.SPLIT)
        if session:
            to_canary = sticks_to_canary(model.name, session, model.share_parts)
        else:
            at = self._phases.get(model.name)
            if at is None:
                at = phase(self._worker, model.name)
            to_canary, self._phases[model.name] = advance(at, model.share_parts)
        return Choice(model, canary, Cause.SPLIT) if to_canary else _stables_turn(model)


def _stables_turn(model: ModelEntry) -> Choice:
    """Stable; while it has no replica its canary, if that is given requests at all."""
    canary = model.canary
    if model.stable.replicas or canary is None or not canary.replicas or not model.share_parts:
        return Choice(model, model.stable, Cause.SPLIT)
    return Choice(model, canary, Cause.STAND_IN)


def find_model(table: Table | None, name: str) -> ModelEntry:
    """Raises RefusedError: 404 with the names there are, 503 before the first table."""
    if table is None:
        raise RefusedError(
            503, "no_routes", "the gateway has not been told its models yet; try again in a second", headers=_RETRY_LINE
        )
    model = table.models.get(name)
    if model is None:
        names = ", ".join(table.names) or "none"
        shown = name if len(name) <= _SHOWN else name[:_SHOWN] + "…"
        raise RefusedError(
            404, "model_not_found", f"model {shown!r} does not exist; models here: {names}", param="model"
        )
    return model


def choose_again(choice: Choice, table: Table | None, name: str) -> Choice:
    """The choice by a newer table, for a request that no engine has seen: its arm if that still serves, else the other.

    The split does not move again. Raises RefusedError when the model, or a canary that was insisted on, is gone.
    """
    if choice.cause is Cause.FALLBACK:
        return _fallback_again(choice, table)
    model = find_model(table, name)
    if choice.cause is Cause.FORCED:
        return Choice(model, _forced(model, choice.arm.arm.value.encode()), Cause.FORCED)
    if choice.cause is Cause.RESCUE:
        return Choice(model, model.stable, Cause.RESCUE)
    canary = model.canary
    is_canarys = choice.arm.arm is Arm.CANARY and choice.cause is Cause.SPLIT
    if is_canarys and canary is not None and canary.replicas and model.share_parts > 0:
        return Choice(model, canary, Cause.SPLIT)
    if choice.arm.arm is Arm.STABLE and choice.cause is Cause.STAND_IN:
        return Choice(model, model.stable, Cause.STAND_IN)
    return _stables_turn(model)


def next_fallback(table: Table | None, name: str, tried: Collection[str]) -> Choice | None:
    """The first fallback, of the model asked for by this name, that has a ready replica and was not tried.

    Only its own list counts, not those of its fallbacks, so no chain of lists can go in circles. A fallback answers
    with its stable: its canary is there for the model's own requests.
    """
    model = table.models.get(name) if table is not None else None
    if table is None or model is None:
        return None
    for each in model.fallbacks:
        fallback = table.models.get(each)
        if fallback is not None and fallback is not model and each not in tried and fallback.stable.replicas:
            return Choice(fallback, fallback.stable, Cause.FALLBACK)
    return None


def _fallback_again(choice: Choice, table: Table | None) -> Choice:
    """Raises RefusedError when the fallback is gone."""
    model = table.models.get(choice.model.name) if table is not None else None
    if model is None:
        raise no_replica(choice)
    return Choice(model, model.stable, Cause.FALLBACK)


def no_replica(choice: Choice) -> RefusedError:
    which = "canary replica" if choice.arm.arm is Arm.CANARY else "replica"
    return RefusedError(
        503,
        "no_replica",
        f"no {which} of model {choice.model.name!r} is ready; try again shortly",
        headers=_RETRY_LINE,
        falls_back=True,
    )


def _forced(model: ModelEntry, arm: bytes) -> ArmEntry:
    if arm == b"stable":
        return model.stable
    if arm != b"canary":
        raise RefusedError(
            400,
            "unknown_arm",
            f"x-llmgw-arm is {arm.decode('latin-1')!r}; it may be stable or canary",
            param="x-llmgw-arm",
        )
    if model.canary is None:
        raise RefusedError(
            409,
            "no_canary",
            f"x-llmgw-arm asks for the canary of model {model.name!r}, which has none; drop the header",
            param="x-llmgw-arm",
        )
    return model.canary


def queue_full(choice: Choice) -> RefusedError:
    return RefusedError(
        429,
        "queue_full",
        f"model {choice.model.name!r} has as many requests as it can take and as many waiting as gateway.queue allows; "
        "try again shortly",
        headers=_RETRY_LINE,
        falls_back=True,
    )


def waited_too_long(choice: Choice, waited_s: float) -> RefusedError:
    return RefusedError(
        503,
        "queue_timeout",
        f"no replica of model {choice.model.name!r} had room for {waited_s:g} s; try again later",
        headers=_RETRY_LINE,
        falls_back=True,
    )


def finishing() -> RefusedError:
    return RefusedError(
        503, "finishing", "the gateway ends before it could pass this request on; ask again", headers=_RETRY_LINE
    )
