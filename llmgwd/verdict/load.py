"""At what load both arms were measured, and whether the canary's was so much lighter that its times flatter it.

What counts is the load that the canary's judged requests met: each look weighs as many of them as arrived in it.
"""

from dataclasses import dataclass, field

FULL = 0.9
"""Part of its slots from which on stable is full."""
IDLE = 0.25
"""Part of its slots up to which a canary is idle."""
LATE_S = 2.0
"""A look is added up this long after its end, when what the workers counted in it has come in."""


HALF_LIFE = 500.0
"""Judged canary requests after which what was measured before counts half."""


@dataclass
class ArmLoad:
    """What an arm went through in one look."""

    held_s: float = 0.0
    """Seconds that requests were in flight, summed over them."""
    busy_s: float = 0.0
    """Seconds that slots were in use, summed over them."""
    tokens: int = 0


@dataclass
class LookLoad:
    """One look until it is added up."""

    number: int
    judged: int = 0
    """Canary requests of the comparison that arrived in it."""
    canary: ArmLoad = field(default_factory=ArmLoad)
    stable: ArmLoad = field(default_factory=ArmLoad)


@dataclass
class ArmSums:
    """An arm's loads; `in_flight` and `busy` are each multiplied by the canary requests that they stood for."""

    in_flight: float = 0.0
    busy: float = 0.0
    known: float = 0.0
    """The canary requests of the looks in which the number of slots was known."""
    held_s: float = 0.0
    tokens: float = 0.0
    """As they came in: often in a later look than the requests that they were given to."""


@dataclass
class Load:
    """A canary's record of it, of constant size."""

    open: list[LookLoad] = field(default_factory=list)
    judged: int = 0
    """Canary requests that were added up, ever."""
    weight: float = 0.0
    """The same, those of long ago less."""
    canary: ArmSums = field(default_factory=ArmSums)
    stable: ArmSums = field(default_factory=ArmSums)


@dataclass(frozen=True)
class LoadFigures:
    """One arm's averages; None: not known."""

    in_flight: float | None = None
    busy: float | None = None
    """Part of its slots in use, 0–1."""
    tokens_per_s: float | None = None
    """Of output, all its requests together."""


@dataclass(frozen=True)
class Slots:
    """Requests that the ready replicas of each arm decode at once; None: not known."""

    canary: int | None = None
    stable: int | None = None


def look_of(load: Load, number: int) -> LookLoad:
    """The open record of a look."""
    for look in load.open:
        if look.number == number:
            return look
    look = LookLoad(number)
    load.open.append(look)
    return look


def add_up(load: Load, now_s: float, look_s: float, judged_from: int | None, slots: Slots) -> bool:
    """Adds up the looks that are over at wall time `now_s`; whether there were any.

    judged_from: first look whose times are judged; what came before it is dropped. A look in the future is one of a
    clock that was set back, and is dropped as well.
    """
    newest = int(now_s // look_s)
    last = int((now_s - LATE_S) // look_s) - 1
    over = [look for look in load.open if not last < look.number <= newest]
    for look in over:
        load.open.remove(look)
        if judged_from is not None and judged_from <= look.number <= last:
            load.judged += look.judged
            _forget(load, 0.5 ** (look.judged / HALF_LIFE))
            load.weight += look.judged
            _add(load.canary, look.canary, look.judged, look_s, slots.canary)
            _add(load.stable, look.stable, look.judged, look_s, slots.stable)
    return bool(over)


def figures(load: Load) -> tuple[LoadFigures, LoadFigures]:
    """The canary's and stable's."""
    return _figures(load.canary, load.weight), _figures(load.stable, load.weight)


def is_uneven(canary: LoadFigures, stable: LoadFigures) -> bool:
    """Whether the canary was idle while stable was full, so that its times say little about the load it is to take."""
    if canary.busy is None or stable.busy is None:
        return False
    return stable.busy >= FULL and canary.busy <= IDLE


def _forget(load: Load, kept: float) -> None:
    """Takes what there is down to the part `kept`: a share, or traffic, of long ago says little about now."""
    load.weight *= kept
    for sums in (load.canary, load.stable):
        sums.in_flight *= kept
        sums.busy *= kept
        sums.known *= kept
        sums.held_s *= kept
        sums.tokens *= kept


def _add(sums: ArmSums, arm: ArmLoad, weight: int, look_s: float, slots: int | None) -> None:
    sums.in_flight += weight * arm.held_s / look_s
    sums.held_s += arm.held_s
    sums.tokens += arm.tokens
    if slots:
        sums.busy += weight * arm.busy_s / (slots * look_s)
        sums.known += weight


def _figures(sums: ArmSums, judged: float) -> LoadFigures:
    if not judged:
        return LoadFigures()
    # Workers that each fill the slots at another moment seem to use more than there are.
    busy = min(1.0, sums.busy / sums.known) if sums.known else None
    in_flight = sums.in_flight / judged
    # A request's tokens in a second, times the requests at once: so it does not matter in which look tokens are told.
    return LoadFigures(in_flight, busy, in_flight * sums.tokens / sums.held_s if sums.held_s else 0.0)
