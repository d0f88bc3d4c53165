"""Weights on disk as a listing, and what clean-up takes of them."""

from rich.console import Group, RenderableType

from llmgw_ctl.render.screen import Listing, text
from llmgw_ctl.render.words import UNKNOWN, counted, short, size
from llmgwd.protocol.messages import Pruned, Weights
from llmgwd.protocol.views import PrunedView, WeightsView

LEFTOVERS = "fetches that did not end"


def weights_list(found: Weights) -> RenderableType:
    unused = f"; `llmgw ctl weights prune` gives {size(found.prunable_bytes)}" if found.prunable_bytes else ""
    summary = text(f"{found.folder}: {size(found.free_bytes)} free{unused}", "dim")
    if not found.revisions:
        return Group(text("no weights on disk"), summary)
    rows = [
        [
            text(each.repo or LEFTOVERS, "bold" if each.repo else ""),
            text(short(each.revision)),
            text(size(each.size_bytes)),
            text(size(each.unshared_bytes)),
            text(_use(each), "" if each.kept else "yellow"),
        ]
        for each in found.revisions
    ]
    return Group(Listing(["REPOSITORY", "REVISION", "SIZE", "OF ITS OWN", "USED BY"], rows), summary)


def _use(weights: WeightsView) -> str:
    if weights.kept:
        return ", ".join(weights.used_by) or "kept, one of the newest"
    return "; ".join((*weights.used_by, "goes with the next clean-up"))


def pruned_list(pruned: Pruned) -> RenderableType:
    if not pruned.removed:
        return text("nothing to remove")
    total = size(sum(each.freed_bytes for each in pruned.removed))
    what = counted(sum(each.repo is not None for each in pruned.removed), "revision")
    would = f"would remove {what} and give {total}" if pruned.dry_run else f"removed {what}, which gave {total}"
    return Group(*(text(_removed(each)) for each in pruned.removed), text(would))


def _removed(each: PrunedView) -> str:
    name = f"{each.repo} {short(each.revision)}" if each.repo else LEFTOVERS
    return f"{name}  {size(each.freed_bytes) if each.freed_bytes else UNKNOWN}"
