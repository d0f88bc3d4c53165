"""The house at a glance, and what happened in it."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llmgw_ctl.render.models import in_crash_loop, readiness
from llmgw_ctl.render.screen import Listing, facts, state, text
from llmgw_ctl.render.words import counted, duration, moment, percent
from llmgwd.protocol.views import EventView, ReplicaView, StatusView


def house(status: StatusView) -> RenderableType:
    up = duration((datetime.now(UTC) - status.started).total_seconds())
    title = Text.assemble(text(f"llmgwd {status.version}", "bold"), text(f"  up {up}, pid {status.pid}", "dim"))
    rows: list[tuple[str, RenderableType]] = [
        ("gateway", f"{status.gateway}, {counted(status.workers, 'worker')}"),
        ("admin", status.admin),
        ("state", status.state_folder),
        ("models", _models(status)),
        ("canaries", _canaries(status)),
        ("jobs", _jobs(status)),
    ]
    rows.extend(("crash loop", _crash_loop(each)) for model in status.models for each in in_crash_loop(model))
    return Group(title, facts(rows))


def _models(status: StatusView) -> RenderableType:
    if not status.models:
        return text("none; add one with `llmgw ctl model add NAME --repo ORG/REPO`", "dim")
    return _lines([text(model.name), readiness(model)] for model in status.models)


def _crash_loop(replica: ReplicaView) -> RenderableType:
    """What a person needs to find out why: the last failure, and what the engine said."""
    said = [text(f"  {line}", "dim") for line in replica.last_lines]
    return Group(Text.assemble(text(replica.id, "bold"), "  ", text(replica.detail)), *said, text(f"  {replica.log}"))


def _canaries(status: StatusView) -> RenderableType:
    if not status.canaries:
        return text("none", "dim")
    return _lines(
        [text(canary.name), state(canary.phase), text(percent(canary.share)), state(canary.verdict.state)]
        for canary in status.canaries
    )


def _jobs(status: StatusView) -> RenderableType:
    if not status.jobs:
        return text("none", "dim")
    return _lines([text(job.id), text(job.model), state(job.state)] for job in status.jobs)


def _lines(rows: Iterable[list[Text]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for row in rows:
        grid.add_row(*row)
    return grid


def event_list(events: Sequence[EventView]) -> RenderableType:
    if not events:
        return text("no events")
    now = datetime.now(UTC)
    rows = []
    for event in events:
        cells = (moment(event.at, now), event.model, event.what.replace("_", " "), event.by, change(event))
        rows.append([text(cell) for cell in cells])
    return Listing(["WHEN", "MODEL", "WHAT", "BY", "CHANGE"], rows)


def change(event: EventView) -> str:
    """From, to and why, as far as the event has them."""
    if event.before and event.after:
        moved = f"{event.before} → {event.after}"
    else:
        moved = event.after or (f"was {event.before}" if event.before else "")
    return "; ".join(words for words in (moved, event.why) if words)
