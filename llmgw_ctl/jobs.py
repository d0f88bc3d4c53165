"""`llmgw ctl jobs …`: what the daemon is at, and was."""

from typing import Annotated

import typer

from llmgw_ctl.options import JobId, Json, Quiet, at_least_one
from llmgw_ctl.output import document
from llmgw_ctl.session import daemon
from llmgw_ctl.verbs import Manner, conclude, follow, tell_done
from llmgwd.protocol.messages import CancelJob, Jobs, ListJobs, ShowJob

app = typer.Typer(no_args_is_help=True, help="Jobs: long-running operations and their steps.")


@app.command("list")
def list_jobs(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(help="How many, newest first.", callback=at_least_one)] = 20,
    json: Json = False,
) -> None:
    """Show the newest jobs."""
    with daemon(ctx) as connection:
        jobs = connection.ask(ListJobs(limit), Jobs).jobs
    if json:
        document(jobs)
        return
    from llmgw_ctl.render.jobs import job_list
    from llmgw_ctl.render.screen import draw

    draw(job_list(jobs))


@app.command()
def show(ctx: typer.Context, job_id: JobId, json: Json = False) -> None:
    """Show one job with its steps."""
    with daemon(ctx) as connection:
        (job,) = connection.ask(ShowJob(job_id), Jobs).jobs
    if json:
        document(job)
        return
    from llmgw_ctl.render.jobs import job_page
    from llmgw_ctl.render.screen import draw

    draw(job_page(job))


@app.command()
def watch(ctx: typer.Context, job_id: JobId, quiet: Quiet = False, json: Json = False) -> None:
    """Follow a job until it ends, and exit as the verb that started it would."""
    manner = Manner(json, quiet)
    with daemon(ctx) as connection:
        (job,) = connection.ask(ShowJob(job_id), Jobs).jobs
        conclude(follow(connection, job, manner), manner)


@app.command()
def cancel(ctx: typer.Context, job_id: JobId, quiet: Quiet = False, json: Json = False) -> None:
    """End a job and undo what it did."""
    with daemon(ctx) as connection:
        tell_done(connection.verb(CancelJob(job_id)), Manner(json, quiet))
