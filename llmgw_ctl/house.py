"""`llmgw ctl status` and `events`: the house at a glance, and what happened in it."""

from typing import Annotated

import typer

from llmgw_ctl.completion import model_names
from llmgw_ctl.options import Json, at_least_one
from llmgw_ctl.output import document
from llmgw_ctl.session import daemon
from llmgwd.protocol.messages import Events, GetStatus, ListEvents, Status


def status(ctx: typer.Context, json: Json = False) -> None:
    """Show the daemon, its models, canaries and jobs at a glance."""
    with daemon(ctx) as connection:
        found = connection.ask(GetStatus(), Status).status
    if json:
        document(found)
        return
    from llmgw_ctl.render.house import house
    from llmgw_ctl.render.screen import draw

    draw(house(found))


def events(
    ctx: typer.Context,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this model's.", autocompletion=model_names)
    ] = None,
    limit: Annotated[int, typer.Option(help="How many of the newest.", callback=at_least_one)] = 50,
    json: Json = False,
) -> None:
    """Show what was changed, when, by whom and why."""
    with daemon(ctx) as connection:
        found = connection.ask(ListEvents(limit, model), Events).events
    if json:
        document(found)
        return
    from llmgw_ctl.render.house import event_list
    from llmgw_ctl.render.screen import draw

    draw(event_list(found))
