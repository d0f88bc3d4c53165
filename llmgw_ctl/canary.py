"""`llmgw ctl model canary …`: a candidate's life, from its start to its verdict."""

from typing import Annotated

import typer

from llmgw_ctl.options import (
    AllowUnsafe,
    AnyName,
    Detach,
    DryRun,
    Engine,
    EngineArgs,
    File,
    Gpus,
    Json,
    KeyFile,
    LocalPath,
    Name,
    NoFitCheck,
    Quant,
    Quiet,
    Repo,
    Revision,
    ServedName,
    Urls,
    check_dry_run,
    limits,
    seconds,
    share,
    shares,
    weights,
)
from llmgw_ctl.output import document
from llmgw_ctl.session import daemon
from llmgw_ctl.verbs import Manner, carry_out, tell_done, tell_preview
from llmgw_ctl.verdict import carry_out_until_verdict
from llmgwd.protocol.messages import (
    Abort,
    Canaries,
    ListCanaries,
    PausePlan,
    Promote,
    ResumePlan,
    SetLimits,
    SetPercent,
    StartCanary,
)
from llmgwd.protocol.states import OnDeadline

LimitOption = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAME=VALUE", help="A limit to hold it to, such as ttft=1.1; repeat it for more."),
]
HOLD_S = 30 * 60.0
IGNORE_LOAD = "Its times count for promotion though its engine was idle while stable's was full."


def canary(
    ctx: typer.Context,
    name: Name,
    percent: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="The canary's share of the requests, 0 to 100; 10 when not given.", callback=share
        ),
    ] = None,
    revision: Revision = None,
    repo: Repo = None,
    file: File = None,
    quant: Quant = None,
    path: LocalPath = None,
    allow_unsafe: AllowUnsafe = False,
    url: Urls = None,
    served_name: ServedName = None,
    key_file: KeyFile = None,
    engine: Engine = None,
    engine_arg: EngineArgs = None,
    gpus: Gpus = None,
    no_fit_check: NoFitCheck = False,
    again: Annotated[bool, typer.Option("--again", help="Also a revision that was rolled back before.")] = False,
    steps: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Shares one after the other, such as 5,25,50.")
    ] = None,
    hold: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long each share is held before the next; 30m with --steps."),
    ] = None,
    auto_promote: Annotated[
        bool, typer.Option("--auto-promote", help="Promote it after the last step, once the verdict is fine.")
    ] = False,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="When it must have a verdict, such as 12h.")
    ] = None,
    on_deadline: Annotated[
        OnDeadline | None,
        typer.Option(help="What becomes of it when it is undecided then: hold, when not given.", show_default=False),
    ] = None,
    limit: LimitOption = None,
    ignore_load: Annotated[bool, typer.Option("--ignore-load", help=IGNORE_LOAD)] = False,
    until_verdict: Annotated[
        bool,
        typer.Option("--until-verdict", help="Wait until it ended: status 0 promoted, 5 rolled back, 3 aborted."),
    ] = False,
    dry_run: DryRun = False,
    detach: Detach = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Try newer weights on a share of a model's requests."""
    _check_together(steps, percent, detach, until_verdict)
    _check_deadline(deadline, on_deadline)
    check_dry_run(dry_run, {"--detach": detach, "--quiet": quiet, "--until-verdict": until_verdict})
    request = StartCanary(
        name=name,
        percent=10.0 if percent is None else percent,
        weights=weights(repo, revision, file, quant, path, allow_unsafe, url, served_name, key_file),
        engine=engine,
        engine_args=tuple(engine_arg) if engine_arg else None,
        gpus=gpus,
        fit_check=not no_fit_check,
        again=again,
        steps=() if steps is None else shares(steps),
        hold_s=seconds(hold) if hold is not None else HOLD_S if steps is not None else 0.0,
        auto_promote=auto_promote,
        deadline_s=None if deadline is None else seconds(deadline),
        on_deadline=on_deadline or OnDeadline.HOLD,
        limits=limits(limit),
        ignore_load=ignore_load,
        until_verdict=until_verdict,
    )
    manner = Manner(json, quiet, detach)
    with daemon(ctx) as connection:
        if dry_run:
            tell_preview(connection, request, manner)
        elif until_verdict:
            carry_out_until_verdict(connection, request, manner)
        else:
            carry_out(connection, request, manner)


def _check_together(steps: str | None, percent: float | None, detach: bool, until_verdict: bool) -> None:
    if steps is not None and percent is not None:
        raise typer.BadParameter("--steps and --percent both give shares; give one of them")
    if detach and until_verdict:
        raise typer.BadParameter("--detach returns at once and --until-verdict waits; give one of them")


def _check_deadline(deadline: str | None, on_deadline: OnDeadline | None) -> None:
    if deadline is None and on_deadline is not None:
        raise typer.BadParameter(f"--on-deadline {on_deadline} needs a --deadline, such as 12h")
    if deadline is not None and seconds(deadline) == 0:
        raise typer.BadParameter("--deadline must be longer than nothing, such as 12h")


def percent(
    ctx: typer.Context,
    name: Name,
    share: Annotated[
        float,
        typer.Argument(metavar="N", help="The share in percent, 0 to 100.", callback=share, show_default=False),
    ],
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Change the share of a model's canary; 0 keeps it running and gives it nothing."""
    with daemon(ctx) as connection:
        tell_done(connection.verb(SetPercent(name, share)), Manner(json, quiet))


def pause(ctx: typer.Context, name: Name, quiet: Quiet = False, json: Json = False) -> None:
    """Hold a canary's plan where it is; it is judged on."""
    with daemon(ctx) as connection:
        tell_done(connection.verb(PausePlan(name)), Manner(json, quiet))


def resume(ctx: typer.Context, name: Name, quiet: Quiet = False, json: Json = False) -> None:
    """Let a canary's plan go on."""
    with daemon(ctx) as connection:
        tell_done(connection.verb(ResumePlan(name)), Manner(json, quiet))


def change_limits(
    ctx: typer.Context,
    name: Name,
    limit: LimitOption = None,
    ignore_load: Annotated[bool | None, typer.Option("--ignore-load/--no-ignore-load", help=IGNORE_LOAD)] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Change limits of a running canary; what is known against a changed one is forgotten."""
    if not limit and ignore_load is None:
        raise typer.BadParameter("which limit? give --limit ttft=1.1 or the like, or --ignore-load")
    with daemon(ctx) as connection:
        tell_done(connection.verb(SetLimits(name, limits(limit), ignore_load)), Manner(json, quiet))


def promote(ctx: typer.Context, name: Name, detach: Detach = False, quiet: Quiet = False, json: Json = False) -> None:
    """Move a model to its canary's weights."""
    with daemon(ctx) as connection:
        carry_out(connection, Promote(name), Manner(json, quiet, detach))


def abort(
    ctx: typer.Context,
    name: Name,
    reason: Annotated[str, typer.Option(help="Why, for the event log.", show_default=False)] = "",
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Take a model's canary out; the model serves everything."""
    with daemon(ctx) as connection:
        tell_done(connection.verb(Abort(name, reason)), Manner(json, quiet))


def canaries(
    ctx: typer.Context,
    name: AnyName = None,
    ended: Annotated[bool, typer.Option("--ended", help="Also those that ran before.")] = False,
    json: Json = False,
) -> None:
    """Show canaries: shares, both arms' figures, the verdict and what happens next."""
    with daemon(ctx) as connection:
        found = connection.ask(ListCanaries(name, ended), Canaries).canaries
    if json:
        document(found)
        return
    from llmgw_ctl.render.canaries import canary_list
    from llmgw_ctl.render.screen import draw

    draw(canary_list(found, name, ended))


def register(app: typer.Typer) -> None:
    """Adds the canary's commands among those of `model`, where help lists them together."""
    app.command()(canary)
    # A negative number is to be refused as a share, not as an option nobody knows.
    app.command(context_settings={"ignore_unknown_options": True})(percent)
    app.command("limits")(change_limits)
    for command in (pause, resume, promote, abort, canaries):
        app.command()(command)
