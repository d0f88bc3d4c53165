"""Traffic for the judge: looks of requests with log-normal times, from a seed."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from llmgwd.verdict.counts import ArmCounts
from llmgwd.verdict.decision import Decision, State, decide
from llmgwd.verdict.evidence import LOOK_S, Evidence, add_canary, add_stable, begin, ripe
from llmgwd.verdict.scale import cell
from llmgwd.verdict.settle import settle

OLD_S = 86400.0


@dataclass
class Arm:
    """How one arm answers."""

    bad: float = 0.005
    ttft: Callable[[random.Random], float] = lambda rng: 0.4 * math.exp(rng.gauss(0, 1))
    token: Callable[[random.Random], float] = lambda rng: 0.025 * math.exp(rng.gauss(0, 0.25))
    cut: float = 0.02
    cancelled: float = 0.0

    def answers(self, rng: random.Random, requests: int) -> ArmCounts:
        counts = ArmCounts(arrived=requests)
        for _ in range(requests):
            if rng.random() < self.cancelled:
                counts.cancelled += 1
                continue
            counts.ended += 1
            if rng.random() < self.bad:
                counts.bad += 1
                continue
            counts.length_limited += rng.random() < self.cut
            for times, seconds in ((counts.ttft, self.ttft(rng)), (counts.token_time, self.token(rng))):
                times[cell(seconds)] = times.get(cell(seconds), 0) + 1
        return counts


@dataclass
class Canary:
    """A canary's life, a look at a time."""

    evidence: Evidence = field(default_factory=lambda: begin({}))
    share: float = 0.1
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    look: int = 0

    def serves(self, canary: Arm, stable: Arm, *, requests: int = 5, stable_requests: int | None = None) -> Decision:
        """One look that has all its answers."""
        others = round(requests / self.share) - requests if stable_requests is None else stable_requests
        add_canary(self.evidence, self.look, self.share, canary.answers(self.rng, requests))
        add_stable(self.evidence, self.look, self.share, stable.answers(self.rng, others))
        self.look += 1
        return self.asked()

    def asked(self, *, stable_down: bool = False) -> Decision:
        now_s = self.look * LOOK_S
        settle(self.evidence, ripe(self.evidence, now_s), self.look - 1, stable_down=stable_down)
        return decide(self.evidence, OLD_S)

    def until(self, state: State, canary: Arm, stable: Arm, *, looks: int = 100, requests: int = 5) -> Decision:
        decision = Decision(State.UNDECIDED)
        for _ in range(looks):
            decision = self.serves(canary, stable, requests=requests)
            if decision.state is state:
                break
        return decision
