"""What each arm of each canary did so far, added up from the workers' reports."""

from collections.abc import Iterable

from llmgwd.domain.canary import Canary
from llmgwd.domain.samples import merged
from llmgwd.protocol.samples import Arm, ArmSample
from llmgwd.store.canaries import Canaries


class Tally:
    """Sums in memory, written to the store by `write`."""

    def __init__(self, canaries: Canaries) -> None:
        self._canaries = canaries
        self._sums: dict[tuple[str, Arm], ArmSample] = {}
        self._unsaved: set[tuple[str, Arm]] = set()

    def add(self, samples: Iterable[ArmSample]) -> None:
        """Takes in samples; those that belong to no comparison are not needed for any verdict."""
        for sample in samples:
            if not sample.canary or sample.apart:
                continue
            key = (sample.canary, sample.arm)
            self.read(sample.canary)
            self._sums[key] = merged(self._sums[key], sample) if key in self._sums else sample
            self._unsaved.add(key)

    def of(self, canary: Canary, arm: Arm) -> ArmSample:
        """That arm over the canary's life."""
        if not canary.runs:
            # Its end was saved; read, not remembered: the past may be looked at, and would pile up.
            found = [sample for sample in self._canaries.samples(canary.id) if sample.arm is arm]
            if found:
                return found[0]
        self.read(canary.id)
        origin = canary.origin if arm is Arm.CANARY else canary.stable_origin
        empty = ArmSample(model=canary.model, arm=arm, revision=origin.short, canary=canary.id)
        return self._sums.get((canary.id, arm), empty)

    def write(self) -> None:
        """Writes what changed, in a transaction; `written` is to be called once that has committed."""
        for canary, arm in self._unsaved:
            self._canaries.put_sample(canary, arm, self._sums[canary, arm])

    def written(self) -> None:
        """What changed is on disk. What came late of a canary that has ended is dropped from memory again."""
        canaries = {canary for canary, _ in self._unsaved}
        self._unsaved.clear()
        for each in canaries:
            found = self._canaries.find(each)
            if found is None or not found.runs:
                self.forget(each)

    def forget(self, canary: str) -> None:
        """Drops an ended canary, whose sums are written, from memory; `of` reads it back."""
        for arm in Arm:
            self._sums.pop((canary, arm), None)

    def read(self, canary: str) -> None:
        """Reads what is saved of a canary, unless it is in memory. Raises LlmgwError when it cannot be read."""
        if not any((canary, arm) in self._sums for arm in Arm):
            for sample in self._canaries.samples(canary):
                self._sums[canary, sample.arm] = sample
