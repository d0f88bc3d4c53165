"""The shipped judge behind three calls, for benchmarks that feed requests one by one as they end."""

import math
from collections.abc import Mapping

from llmgwd.verdict.counts import ArmCounts
from llmgwd.verdict.decision import MIN_AGE_S, State, decide
from llmgwd.verdict.evidence import LOOK_S, OpenLook, add_canary, add_stable, begin
from llmgwd.verdict.report import Report, report
from llmgwd.verdict.scale import cell
from llmgwd.verdict.settle import settle

SETTLE_S = 30.0
"""A look is closed this long after its end: who feeds this adapter tells of a request only when it has ended."""
SAID = {State.WORSE: "rollback", State.FINE: "promote", State.UNDECIDED: "continue"}


class Product:
    """One canary's life. `look` may be called as often as wished, also right after each failed request."""

    look_on_failure = True

    def __init__(self, share: float, alpha: float, limits: Mapping[str, float]) -> None:
        """share: of requests that go to the canary, 0–1.

        limits: `error_pp` in 0–1, `ttft_ratio` and `tps_ratio`. Nothing is fed of answers cut at the length limit,
        degenerate ones or refusals, so these are not judged.
        """
        self._share = share
        self.evidence = begin(
            {
                "bad_answers": 100.0 * limits["error_pp"],
                "ttft": limits["ttft_ratio"],
                "speed": limits["tps_ratio"],
                "length_limited": None,
                "degenerate": None,
                "rejected": None,
            },
            alpha=alpha,
        )
        self._fresh: dict[tuple[bool, int], ArmCounts] = {}

    def observe(
        self,
        side: str,
        t: float,
        ok: bool,
        ttft_s: float | None,
        duration_s: float,
        output_tokens: int,
        arrived_s: float | None = None,
    ) -> None:
        """A request of `stable` or `canary` that ended at `t`; by default it arrived `duration_s` before."""
        look = int((t - duration_s if arrived_s is None else arrived_s) // LOOK_S)
        key = (side == "canary", look)
        counts = self._fresh.get(key)
        if counts is None:
            counts = self._fresh[key] = ArmCounts()
        counts.ended += 1
        if not ok or not output_tokens:
            counts.bad += 1
            return
        if ttft_s is None:
            return
        first = cell(ttft_s)
        counts.ttft[first] = counts.ttft.get(first, 0) + 1
        if output_tokens > 1 and duration_s > ttft_s:
            each = cell((duration_s - ttft_s) / (output_tokens - 1))
            counts.token_time[each] = counts.token_time.get(each, 0) + 1

    def look(self, t: float) -> str:
        """`continue`, `rollback` or `promote`."""
        for (canary, look), counts in self._fresh.items():
            (add_canary if canary else add_stable)(self.evidence, look, self._share, counts)
        self._fresh = {}
        closed = sorted((look for look in self.evidence.open if self._over(look, t)), key=lambda look: look.number)
        settle(self.evidence, closed, math.ceil(t / LOOK_S) - 1)
        self._decision = decide(self.evidence, t, min_age_s=MIN_AGE_S)
        return SAID[self._decision.state]

    def explain(self) -> Report:
        """The last look's decision, explained."""
        return report(self.evidence, self._decision)

    @staticmethod
    def _over(look: OpenLook, t: float) -> bool:
        return (look.number + 1) * LOOK_S + SETTLE_S <= t
