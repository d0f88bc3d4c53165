"""Which arm and replica a request goes to. Holds the one thing that choice remembers: where each split stands."""

from llmgwd.domain.split import advance, phase, sticks_to_canary
from llmgwd.gateway.answers import RefusedError
from llmgwd.gateway.table import ArmEntry, ModelEntry, Table
from llmgwd.protocol.samples import Arm

_RETRY_LINE = b"Retry-After: 1\r\n"


class Choice:
    """An arm for one request, and whether the request insisted on it."""

    __slots__ = ("arm", "is_forced", "model")

    def __init__(self, model: ModelEntry, arm: ArmEntry, is_forced: bool) -> None:
        self.model = model
        self.arm = arm
        self.is_forced = is_forced


class Splits:
    """The phase of every model's split in this worker; it goes on through new tables and shares."""

    __slots__ = ("_phases", "_worker")

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._phases: dict[str, int] = {}

    def choose(self, model: ModelEntry, session: bytes, arm: bytes) -> Choice:
        """The arm for a request; `session` and `arm` are empty when not given. Raises RefusedError for a wrong arm."""
        if arm:
            return Choice(model, _forced(model, arm), True)
        canary = model.canary
        if canary is None or not canary.replicas:
            # The split does not move: a canary that is away must not find its turns taken.
            return Choice(model, model.stable, False)
        if session:
            to_canary = sticks_to_canary(model.name, session, model.share_parts)
        else:
            at = self._phases.get(model.name)
            if at is None:
                at = phase(self._worker, model.name)
            to_canary, self._phases[model.name] = advance(at, model.share_parts)
        return Choice(model, canary if to_canary else model.stable, False)


def find_model(table: Table | None, name: str) -> ModelEntry:
    """Raises RefusedError: 404 with the names there are, 503 before the first table."""
    if table is None:
        raise RefusedError(
            503, "no_routes", "the gateway has not been told its models yet; try again in a second", headers=_RETRY_LINE
        )
    model = table.models.get(name)
    if model is None:
        names = ", ".join(table.names) or "none"
        raise RefusedError(
            404, "model_not_found", f"model {name!r} does not exist; models here: {names}", param="model"
        )
    return model


def choose_again(choice: Choice, table: Table | None, name: str) -> Choice:
    """The choice by a newer table, for a request that no engine has seen: its arm if that still serves, else stable.

    The split does not move again. Raises RefusedError when the model, or a canary that was insisted on, is gone.
    """
    model = find_model(table, name)
    if choice.is_forced:
        return Choice(model, _forced(model, choice.arm.arm.value.encode()), True)
    canary = model.canary
    keeps_canary = choice.arm.arm is Arm.CANARY and canary is not None and canary.replicas and model.share_parts > 0
    return Choice(model, canary if keeps_canary and canary is not None else model.stable, False)


def no_replica(choice: Choice) -> RefusedError:
    which = "canary replica" if choice.arm.arm is Arm.CANARY else "replica"
    return RefusedError(
        503,
        "no_replica",
        f"no {which} of model {choice.model.name!r} is ready; try again shortly, or see `llmgw ctl model show "
        f"{choice.model.name}`",
        headers=_RETRY_LINE,
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
