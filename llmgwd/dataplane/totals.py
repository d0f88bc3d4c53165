"""What every arm of every model did since the daemon began, for whoever reads metrics."""

from collections.abc import Callable, Iterable

import msgspec

from llmgwd.domain.samples import merged
from llmgwd.protocol.link import Routes
from llmgwd.protocol.samples import Arm, ArmSample

FORGET_S = 900.0
"""How long after its last request an arm that is served no more is still told of."""

SeriesKey = tuple[str, Arm, str]
"""Model, arm, revision."""


class Totals:
    """Sums in memory, of one size for each model, arm and revision, whatever the number of requests."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is seconds of a clock that only goes forward."""
        self._now = now
        self._sums: dict[SeriesKey, ArmSample] = {}
        self._changed_at: dict[SeriesKey, float] = {}
        self._served: frozenset[SeriesKey] = frozenset()

    def add(self, samples: Iterable[ArmSample]) -> None:
        """Takes in samples, those that belong to no comparison too."""
        for sample in samples:
            key = (sample.model, sample.arm, sample.revision)
            known = self._sums.get(key)
            plain = msgspec.structs.replace(sample, canary="", apart=False)
            self._sums[key] = plain if known is None else merged(known, plain)
            self._changed_at[key] = self._now()

    def follow(self, routes: Routes) -> None:
        """This is what is served from now on."""
        arms = [(model.name, Arm.STABLE, model.stable) for model in routes.models]
        arms += [(model.name, Arm.CANARY, model.canary.arm) for model in routes.models if model.canary is not None]
        adapted = [(model, f"{model.name}:{adapter}") for model in routes.models for adapter in model.adapters]
        arms += [(name, Arm.STABLE, model.stable) for model, name in adapted]
        self._served = frozenset((name, arm, route.revision) for name, arm, route in arms)

    def all(self) -> list[ArmSample]:
        """What is served, and what was until lately."""
        before = self._now() - FORGET_S
        for key, changed_at in list(self._changed_at.items()):
            if key not in self._served and changed_at < before:
                del self._sums[key], self._changed_at[key]
        empty = (ArmSample(*key) for key in sorted(self._served - self._sums.keys()))
        return [*self._sums.values(), *empty]
