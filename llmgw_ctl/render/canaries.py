"""A canary as a compact block: both arms side by side, the verdict and what happens next."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llmgw_ctl.render.screen import STYLES, facts, state, text
from llmgw_ctl.render.words import UNKNOWN, count, duration, moment, move, part, percent
from llmgwd.protocol.samples import Outcome
from llmgwd.protocol.views import ArmView, CanaryView

NAMES_WIDTH = len("cut at length")


def canary_list(canaries: Sequence[CanaryView], of: str | None, ended: bool) -> RenderableType:
    if not canaries:
        whose = f" of {of}" if of else ""
        return text(f"no canaries{whose}" if ended else f"no canary{whose} is running; --ended shows those that ran")
    blocks: list[RenderableType] = []
    for canary in canaries:
        blocks += [canary_block(canary), ""] if canary is not canaries[-1] else [canary_block(canary)]
    return Group(*blocks)


def canary_block(canary: CanaryView) -> RenderableType:
    title = Text.assemble(
        text(canary.name, "bold"), text(f"  of {canary.model}  ", "dim"), state(canary.phase), text(_age(canary), "dim")
    )
    above: list[tuple[str, RenderableType]] = [
        ("share", f"{percent(canary.share)} wanted, {_real(canary)}"),
        ("weights", move(canary.stable_origin, canary.origin)),
    ]
    verdict = canary.verdict
    below: list[tuple[str, RenderableType]] = [
        ("verdict", Text.assemble(text(verdict.state, STYLES.get(verdict.state, "")), text(f": {verdict.sentence}")))
    ]
    if canary.reason:
        below.append(("ended", canary.reason))
    if canary.next and canary.ended is None:
        below.append(("next", canary.next))
    return Group(title, _facts(above), _arms(canary.stable, canary.canary), _facts(below))


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
        ("tokens/s", _speed(stable.tokens_per_s), _speed(canary.tokens_per_s)),
    ]
    for name, left, right in rows:
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
    return "no requests so far" if canary.share_real is None else f"{percent(canary.share_real)} given so far"


def _milliseconds(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else f"{seconds * 1000:,.0f} ms"


def _speed(tokens_per_s: float | None) -> str:
    return UNKNOWN if tokens_per_s is None else f"{tokens_per_s:.1f}"
