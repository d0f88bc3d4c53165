"""The limits a canary is held to: names, units, defaults, and how they are written on a command line."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Unit(StrEnum):
    POINTS = "points"
    """Percentage points above stable's share."""
    RATIO = "ratio"
    """Canary : stable."""


class Metric(StrEnum):
    """What is judged. Each is held to one limit; `ttft` holds two."""

    # An Enum's own is a Python function, and every look finds its way by metrics.
    __hash__ = str.__hash__

    BAD_ANSWERS = "bad_answers"
    TTFT = "ttft"
    TTFT_P95 = "ttft_p95"
    SPEED = "speed"
    LENGTH_LIMITED = "length_limited"
    DEGENERATE = "degenerate"
    REJECTED = "rejected"


@dataclass(frozen=True)
class Limit:
    """A limit's default, its unit, and the metrics it is put on with each one's weight in the error budget."""

    default: float
    unit: Unit
    weights: Mapping[Metric, float]
    lowest: float
    highest: float


KNOWN: Mapping[str, Limit] = {
    "bad_answers": Limit(1.0, Unit.POINTS, {Metric.BAD_ANSWERS: 0.20}, 0, 99),
    "ttft": Limit(1.2, Unit.RATIO, {Metric.TTFT: 0.44, Metric.TTFT_P95: 0.06}, 0.1, 100),
    "speed": Limit(0.8, Unit.RATIO, {Metric.SPEED: 0.13}, 0.01, 10),
    "length_limited": Limit(5.0, Unit.POINTS, {Metric.LENGTH_LIMITED: 0.06}, 0, 99),
    "degenerate": Limit(2.0, Unit.POINTS, {Metric.DEGENERATE: 0.07}, 0, 99),
    "rejected": Limit(2.0, Unit.POINTS, {Metric.REJECTED: 0.04}, 0, 99),
}
"""Every limit by name. The weights over all metrics add up to 1."""

_LIMIT_OF: Mapping[Metric, str] = {metric: name for name, limit in KNOWN.items() for metric in limit.weights}

OFF = "off"
"""How a limit that is not judged is written."""

Limits = Mapping[str, float | None]
"""Limits by name; None: not judged."""


class LimitError(ValueError):
    """A limit that does not exist, or a value it cannot have; the message is for people."""


def complete(given: Limits) -> dict[str, float | None]:
    """All six limits, `given` over the defaults. LimitError names what is unknown or out of range."""
    for name, value in given.items():
        _check(name, value)
    return {name: given.get(name, limit.default) for name, limit in KNOWN.items()}


def parse(text: str) -> tuple[str, float | None]:
    """Reads `bad_answers=+0.5`, `ttft=1.1` or `rejected=off`."""
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals:
        raise LimitError(f"{text!r} is no limit; write NAME=VALUE, for example ttft=1.1 or bad_answers=+0.5")
    if value.strip().lower() == OFF:
        number = None
    else:
        try:
            number = float(value.strip().removesuffix("×").removesuffix("x"))
        except ValueError:
            raise LimitError(f"limit {name} is {value.strip()!r}; expected a number or `off`") from None
    _check(name, number)
    return name, number


def written(name: str, value: float | None) -> str:
    """A limit as people read it: `+1 point`, `1.2 ×`, `off`."""
    if value is None:
        return OFF
    if KNOWN[name].unit is Unit.RATIO:
        return f"{value:g} ×"
    return f"{value:+g} point{'' if value == 1 else 's'}"


def weights(limits: Limits) -> dict[Metric, float]:
    """The error budget's parts over the metrics that are judged; they add up to 1, or there are none."""
    judged = {
        metric: weight
        for name, limit in KNOWN.items()
        if limits.get(name) is not None
        for metric, weight in limit.weights.items()
    }
    total = sum(judged.values())
    return {metric: weight / total for metric, weight in judged.items()}


def limit_of(metric: Metric) -> str:
    """The name of the limit that a metric is held to."""
    return _LIMIT_OF[metric]


def _check(name: str, value: float | None) -> None:
    limit = KNOWN.get(name)
    if limit is None:
        raise LimitError(f"there is no limit {name!r}; expected one of {', '.join(KNOWN)}")
    # Written so that a NaN is refused too.
    if value is not None and not limit.lowest <= value <= limit.highest:
        unit = "points above stable's share" if limit.unit is Unit.POINTS else "times stable's"
        raise LimitError(
            f"limit {name} is {value:g}; expected {limit.lowest:g} to {limit.highest:g} ({unit}), or `{OFF}`"
        )
