"""Where canaries are judged: each one's evidence, fed by the workers' looks, kept over restarts."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from datetime import datetime

import msgspec

from llmgwd.domain.canary import Canary
from llmgwd.protocol.samples import Arm, ArmSample, LoadSample, LookSample
from llmgwd.store.canaries import Canaries
from llmgwd.verdict.counts import ArmCounts
from llmgwd.verdict.decision import Decision, State, decide
from llmgwd.verdict.evidence import Evidence, add_canary, add_stable, begin, change_limits, look_at, ripe
from llmgwd.verdict.load import ArmLoad, LoadFigures, LookLoad, Slots, add_up, figures, is_uneven, look_of
from llmgwd.verdict.report import Report, make_final, report
from llmgwd.verdict.settle import settle

_PLACE = ("canary", "arm", "look", "share")
_COUNTS = tuple(field.name for field in msgspec.structs.fields(LookSample) if field.name not in _PLACE)


class Bench:
    """Evidence in memory, written by `write`."""

    def __init__(self, canaries: Canaries) -> None:
        self._canaries = canaries
        self._evidence: dict[str, Evidence] = {}
        self._unsaved: set[str] = set()

    def open(self, canary: str, limits: Mapping[str, float | None], look_s: float) -> None:
        """Begins a canary's evidence; to be called in the transaction that writes the canary."""
        self._canaries.put_evidence(canary, begin(limits, look_s=float(look_s)))

    def add(self, looks: Iterable[LookSample]) -> set[str]:
        """Takes what workers counted; the canaries that gave a bad answer, which may be looked at at once."""
        bad = set()
        for sample in looks:
            evidence = self._known(sample.canary)
            if evidence is None:
                continue
            counts = ArmCounts(**{name: getattr(sample, name) for name in _COUNTS})
            add = add_canary if sample.arm is Arm.CANARY else add_stable
            add(evidence, sample.look, sample.share / 100, counts)
            self._unsaved.add(sample.canary)
            if sample.arm is Arm.CANARY and sample.arrived and 0 < sample.share < 100:
                look_of(evidence.load, sample.look).judged += sample.arrived
            if sample.arm is Arm.CANARY and (counts.bad or counts.rejected or counts.degenerate):
                bad.add(sample.canary)
        return bad

    def add_loads(self, loads: Iterable[LoadSample], samples: Iterable[ArmSample]) -> None:
        """Takes how busy the arms were, and the tokens they gave meanwhile."""
        for load in loads:
            evidence = self._known(load.canary)
            if evidence is not None:
                arm = _arm_of(look_of(evidence.load, load.look), load.arm)
                arm.held_s += load.held_s
                arm.busy_s += load.busy_s
                self._unsaved.add(load.canary)
        for sample in samples:
            evidence = self._known(sample.canary) if sample.canary and sample.completion_tokens else None
            if evidence is not None and evidence.load.open:
                newest = max(evidence.load.open, key=lambda look: look.number)
                _arm_of(newest, sample.arm).tokens += sample.completion_tokens
                self._unsaved.add(sample.canary)

    def close_looks(self, canary: Canary, now: datetime, *, stable_down: bool, slots: Slots) -> None:
        """Bets on the looks that are over."""
        evidence = self._find(canary.id)
        if evidence is None:
            return
        looks = ripe(evidence, now.timestamp())
        was_down = evidence.stable_down
        settle(evidence, looks, look_at(evidence, now.timestamp()), stable_down=stable_down)
        if looks or evidence.stable_down != was_down:
            self._unsaved.add(canary.id)
        judged_from = None if evidence.stable_down else evidence.warm_from
        if add_up(evidence.load, now.timestamp(), evidence.look_s, judged_from, slots):
            self._unsaved.add(canary.id)

    def decide(self, canary: Canary, now: datetime, min_age_s: float) -> Decision | None:
        """What the evidence shows; None for a canary of which there is none. Once it is worse, that is final."""
        evidence = self._find(canary.id)
        if evidence is None:
            return None
        since = canary.progress.since if canary.progress else now
        uneven = not canary.ignores_load and is_uneven(*figures(evidence.load))
        decision = decide(evidence, (now - since).total_seconds(), min_age_s=min_age_s, uneven_load=uneven)
        if decision.state is State.WORSE and evidence.final is None and canary.runs:
            make_final(evidence, decision)
            self._unsaved.add(canary.id)
        return decision

    def judged(self, canary: str) -> int:
        """The canary's requests in looks that are closed."""
        evidence = self._find(canary)
        return evidence.seen if evidence else 0

    def load(self, canary: str) -> tuple[LoadFigures, LoadFigures]:
        """At what load the canary and stable were measured."""
        evidence = self._find(canary)
        return figures(evidence.load) if evidence else (LoadFigures(), LoadFigures())

    def report(self, canary: Canary, now: datetime, min_age_s: float) -> Report | None:
        """The same, explained. Takes milliseconds."""
        evidence, decision = self._find(canary.id), self.decide(canary, now, min_age_s)
        return report(evidence, decision) if evidence and decision else None

    def with_limits(self, canary: str, limits: Mapping[str, float | None]) -> tuple[Evidence | None, tuple[str, ...]]:
        """The evidence as these limits make it, to be written and then given to `replace`; the names that differ."""
        evidence = deepcopy(self._find(canary))
        return evidence, change_limits(evidence, limits) if evidence is not None else ()

    def replace(self, canary: str, evidence: Evidence) -> None:
        """Judges by this evidence from now on; to be called once what wrote it has committed."""
        self._evidence[canary] = evidence

    def limits(self, canary: str) -> Mapping[str, float | None]:
        evidence = self._find(canary)
        return evidence.limits if evidence else {}

    def write(self) -> None:
        """Writes what changed, in a transaction; `written` is to be called once that has committed."""
        for canary in self._unsaved:
            self._canaries.put_evidence(canary, self._evidence[canary])

    def written(self) -> None:
        """What changed is on disk."""
        self._unsaved.clear()

    def forget(self, canary: str) -> None:
        """Drops an ended canary, whose evidence is written, from memory; `report` reads it back."""
        self._evidence.pop(canary, None)
        self._unsaved.discard(canary)

    def read(self, canary: str) -> None:
        """Reads what is saved of a canary, unless it is in memory. Raises LlmgwError when it cannot be read."""
        self._find(canary)

    def _known(self, canary: str) -> Evidence | None:
        """That of a canary that runs. One that has ended has none: its verdict is spoken, whatever comes late."""
        self._find(canary)
        return self._evidence.get(canary)

    def _find(self, canary: str) -> Evidence | None:
        if canary in self._evidence:
            return self._evidence[canary]
        evidence = self._canaries.evidence(canary)
        if evidence is not None:
            running = self._canaries.find(canary)
            if running is not None and running.runs:
                self._evidence[canary] = evidence
        return evidence


def _arm_of(look: LookLoad, arm: Arm) -> ArmLoad:
    return look.canary if arm is Arm.CANARY else look.stable
