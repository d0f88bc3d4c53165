"""`llmgw ctl weights …`: what is on disk, and making room."""

from typing import Annotated

import typer

from llmgw_ctl.failures import CommandError
from llmgw_ctl.options import Json
from llmgw_ctl.output import document, note, result
from llmgw_ctl.session import daemon
from llmgwd.protocol.messages import ListWeights, Pruned, PruneWeights, Verified, Weights
from llmgwd.protocol.views import VerifiedView

app = typer.Typer(no_args_is_help=True, help="Weights on disk: what they take, who needs them, making room.")


@app.command("list")
def list_weights(ctx: typer.Context, json: Json = False) -> None:
    """Show the revisions on disk, what they take and who needs them."""
    with daemon(ctx) as connection:
        found = connection.ask(ListWeights(), Weights)
    if json:
        document(found.revisions)
        return
    from llmgw_ctl.render.screen import draw
    from llmgw_ctl.render.weights import weights_list

    draw(weights_list(found))


@app.command()
def prune(
    ctx: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    json: Json = False,
) -> None:
    """Remove what nothing needs, and what fetches that did not end have left."""
    with daemon(ctx) as connection:
        pruned = connection.ask(PruneWeights(dry_run), Pruned)
    if json:
        document(pruned.removed)
        return
    from llmgw_ctl.render.screen import draw
    from llmgw_ctl.render.weights import pruned_list

    draw(pruned_list(pruned))


@app.command()
def verify(
    ctx: typer.Context,
    of: Annotated[
        str | None, typer.Argument(metavar="[NAME|REVISION]", help="A model, or a commit's first digits; else all.")
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Fetch again what is damaged, and only that.")] = False,
    json: Json = False,
) -> None:
    """Hash the weights on disk again and say what is damaged."""
    from llmgw_ctl.render.words import short, size

    found: list[VerifiedView] = []
    with daemon(ctx) as connection:
        for answer in connection.verify_weights(of, repair=repair):
            if isinstance(answer, Verified):
                found = list(answer.revisions)
            elif not json:
                done, total = answer.progress.done, answer.progress.total or 0
                note(f"{answer.repo} {short(answer.revision)}: {size(done)} of {size(total)}")
    if json:
        document(found)
    else:
        for each in found:
            words = "; ".join(word for word in (each.damage, each.verified) if word)
            result(f"{each.repo} {short(each.revision)}: {words}")
    if damaged := [each for each in found if each.damage and not each.repaired]:
        raise _damaged(damaged, len(found))
    if not json:
        result(_all_well(found))


def _all_well(found: list[VerifiedView]) -> str:
    from llmgw_ctl.render.words import counted

    if not found:
        return "no fetched weights on disk; local weights are not checked"
    files = counted(sum(each.files for each in found), "file")
    return f"{counted(len(found), 'revision')}, {files}, all as they should be"


def _damaged(damaged: list[VerifiedView], of_all: int) -> CommandError:
    served = sorted({name for each in damaged for name in each.used_by})
    from_it = f", of {', '.join(served)}" if served else ""
    hint = "fetch again what is damaged with `llmgw ctl weights verify --repair`"
    restart = "; what runs read the old file: start it again then" if served else ""
    error = CommandError(f"{len(damaged)} of {of_all} revisions damaged{from_it}", hint + restart, code="damaged")
    error.documented = True
    return error
