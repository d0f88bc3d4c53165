"""A canary as a compact block: both arms side by side, the verdict and what happens next."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llmgw_ctl.render.screen import STYLES, facts, state, text
from llmgw_ctl.render.words import UNKNOWN, count, duration, moment, move, part, percent
from llmgwd.protocol.samples import Outcome
from llmgwd.protocol.states import CanaryPhase
from llmgwd.protocol.views import ArmView, CanaryView, MetricView

METRICS = {
    "bad_answers": "bad answers",
    "ttft": "first token",
    "ttft_p95": "its p95",
    "speed": "time a token",
    "length_limited": "cut at length",
    "degenerate": "degenerate",
    "rejected": "rejected",
}
STATES = {"absent": "no answer has one"}
RATIOS = ("ttft", "ttft_p95", "speed")
NAMES_WIDTH = len("cut at length")


def canary_list(canaries: Sequence[CanaryView], of: str | None, ended: bool) -> RenderableType:
    if not canaries:
        whose = f" of {of}" if of else ""
        return text(f"no canaries{whose}" if ended else f"no canary{whose} is running; --ended shows those that ran")
    blocks: list[RenderableType] = []
    for canary in canaries:
        blocks += [canary_block(canary), ""] if canary is not canaries[-1] else [canary_block(canary)]
    return Group(*blocks)


def canary_block(canary: CanaryView, *, figures: bool = True) -> RenderableType:
    """`figures`: with both arms' and each metric's, which take most of its lines."""
    title = Text.assemble(
        text(canary.name, "bold"), text(f"  of {canary.model}  ", "dim"), state(canary.phase), text(_age(canary), "dim")
    )
    above: list[tuple[str, RenderableType]] = [
        ("share", f"{percent(canary.share)} wanted, {_real(canary)}"),
        ("weights", move(canary.stable_origin, canary.origin)),
        *([("changed", canary.changes)] if canary.changes else []),
    ]
    verdict = canary.verdict
    below: list[tuple[str, RenderableType]] = [
        ("verdict", Text.assemble(text(verdict.state, STYLES.get(verdict.state, "")), text(_reason(canary))))
    ]
    if canary.reason:
        below.append(("ended", canary.reason))
    if canary.next and canary.ended is None:
        below.append(("next", f"{canary.next}{_at(canary.next_at)}"))
    if canary.ignores_load:
        above.append(("load", "may be uneven: its times count all the same"))
    if len(canary.steps) > 1:
        above.append(("plan", _plan(canary)))
    between: list[RenderableType] = []
    # One that ended before it had a request has nothing to compare.
    if figures and not (canary.ended and canary.share_real is None):
        between.append(_arms(canary.stable, canary.canary))
        if verdict.metrics:
            between.append(_metrics(verdict.metrics))
    return Group(title, _facts(above), *between, _facts(below))


def _reason(canary: CanaryView) -> str:
    """The sentence without the state that stands before it; nothing where it is why the canary ended."""
    if canary.phase is CanaryPhase.ROLLED_BACK and canary.reason:
        return ""
    return f": {canary.verdict.sentence.removeprefix(f'{canary.verdict.state} ')}"


def _plan(canary: CanaryView) -> RenderableType:
    steps = [text(f"{step:g} %", "bold" if at == canary.step else "dim") for at, step in enumerate(canary.steps)]
    parts: list[Text | str] = []
    for step in steps:
        parts += [step, " → "]
    return Text.assemble(*parts, "promoted when fine" if canary.auto_promote else "a person decides")


def _at(when: datetime | None) -> str:
    return "" if when is None else f", at {moment(when, datetime.now(UTC))}"


def _metrics(metrics: Sequence[MetricView]) -> RenderableType:
    """Each limit with what is known of it; the interval holds at every look."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("", style="dim", no_wrap=True, min_width=NAMES_WIDTH + 2)
    for title in ("between", "limit"):
        table.add_column(title, justify="right", no_wrap=True, min_width=8)
    table.add_column("", no_wrap=True)
    for metric in metrics:
        if metric.limit is not None:
            table.add_row(
                f"  {METRICS.get(metric.metric, metric.metric)}",
                _between(metric),
                _bound(metric, metric.limit),
                text(STATES.get(metric.state, metric.state), STYLES.get(metric.state, "")),
            )
    return table


def _between(metric: MetricView) -> str:
    if metric.low is None and metric.high is None:
        return UNKNOWN
    return f"{_bound(metric, metric.low)} … {_bound(metric, metric.high)}"


def _bound(metric: MetricView, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.2f} ×" if metric.metric in RATIOS else f"{100 * value:+.1f} pt"


def _arms(stable: ArmView, canary: ArmView) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("", style="dim", no_wrap=True, min_width=NAMES_WIDTH + 2)
    table.add_column("stable", justify="right", no_wrap=True, min_width=8)
    table.add_column("canary", justify="right", no_wrap=True, min_width=8, style="bold")
    rows = [
        ("requests", count(stable.requests), count(canary.requests)),
        ("bad", part(stable.bad_share), part(canary.bad_share)),
        ("cut at length", part(stable.length_share), part(canary.length_share)),
        ("first token", _milliseconds(stable.ttft_s), _milliseconds(canary.ttft_s)),
        ("tokens/s", _decimal(stable.tokens_per_s), _decimal(canary.tokens_per_s)),
    ]
    loads = [
        ("in flight", _decimal(stable.in_flight), _decimal(canary.in_flight)),
        ("slots busy", part(stable.slots_busy), part(canary.slots_busy)),
        ("all tokens/s", _decimal(stable.output_tokens_per_s), _decimal(canary.output_tokens_per_s)),
    ]
    for name, left, right in rows + [row for row in loads if row[1:] != (UNKNOWN, UNKNOWN)]:
        table.add_row(f"  {name}", left, right)
    if bad := bad_outcomes(canary):
        # Under the figures rather than beside them: it fits any width.
        return Group(table, _facts([("canary bad", bad)]))
    return table


def _facts(rows: list[tuple[str, RenderableType]]) -> RenderableType:
    return facts(rows, names_width=NAMES_WIDTH)


def bad_outcomes(arm: ArmView) -> str:
    """How the bad requests ended, and how many of them stable answered after all."""
    kinds = [
        f"{count(number)} {kind.value}"
        for kind in (Outcome.ERROR, Outcome.TRUNCATED, Outcome.EMPTY)
        if (number := arm.outcomes.get(kind, 0))
    ]
    if arm.rescued:
        kinds.append(f"{count(arm.rescued)} rescued by stable")
    return ", ".join(kinds)


def _age(canary: CanaryView) -> str:
    now = datetime.now(UTC)
    ran = duration(((canary.ended or now) - canary.started).total_seconds())
    return f"  {moment(canary.ended, now)} after {ran}" if canary.ended else f"  for {ran}"


def _real(canary: CanaryView) -> str:
    if canary.share_real is None:
        return "no requests" if canary.ended else "no requests so far"
    tokens = f" and {percent(canary.tokens_share_real)} of tokens" if canary.tokens_share_real is not None else ""
    return f"{percent(canary.share_real)} of requests{tokens}{'' if canary.ended else ' so far'}"


def _milliseconds(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else f"{seconds * 1000:,.0f} ms"


def _decimal(number: float | None) -> str:
    return UNKNOWN if number is None else f"{number:,.1f}"
