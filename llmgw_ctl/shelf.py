"""`llmgw ctl weights …`: what is on disk, and making room."""

from typing import Annotated

import typer

from llmgw_ctl.options import Json
from llmgw_ctl.output import document
from llmgw_ctl.session import daemon
from llmgwd.protocol.messages import ListWeights, Pruned, PruneWeights, Weights

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
