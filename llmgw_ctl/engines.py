"""`llmgw ctl engines …`: how weights are served, and what exactly would be run."""

from typing import Annotated

import typer

from llmgw_ctl.completion import engine_names, model_names
from llmgw_ctl.options import Json
from llmgw_ctl.output import document
from llmgw_ctl.session import daemon
from llmgwd.protocol.messages import Engines, ListEngines, ShowEngine

app = typer.Typer(no_args_is_help=True, help="Engines: how weights are served, and the command lines for it.")


@app.command("list")
def list_engines(ctx: typer.Context, json: Json = False) -> None:
    """Show the engines there are, and whether their programs are."""
    with daemon(ctx) as connection:
        engines = connection.ask(ListEngines(), Engines).engines
    if json:
        document(engines)
        return
    from llmgw_ctl.render.engines import engine_list
    from llmgw_ctl.render.screen import draw

    draw(engine_list(engines))


@app.command()
def show(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="ENGINE", help="Its name.", autocompletion=engine_names, show_default=False)
    ],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="As it would serve this model.", autocompletion=model_names)
    ] = None,
    json: Json = False,
) -> None:
    """Show an engine's command line, and what is known of it."""
    with daemon(ctx) as connection:
        (engine,) = connection.ask(ShowEngine(name, model), Engines).engines
    if json:
        document(engine)
        return
    from llmgw_ctl.render.engines import engine_page
    from llmgw_ctl.render.screen import draw

    draw(engine_page(engine))
