"""Arguments and options that several commands share."""

import math
from pathlib import Path
from typing import Annotated

import typer

from llmgw_ctl.completion import job_ids, model_names
from llmgwd.protocol.messages import WeightsChoice

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The model's name.", autocompletion=model_names, show_default=False)
]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="The name that clients will ask for.", show_default=False)]
AnyName = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="Only this model's.", autocompletion=model_names, show_default=False),
]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", autocompletion=job_ids, show_default=False)]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]
Detach = Annotated[bool, typer.Option("--detach", help="Print the job's id at once instead of following it.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only failures.")]

Repo = Annotated[str | None, typer.Option(metavar="ORG/REPO", help="Hugging Face repository of the weights.")]
Revision = Annotated[str | None, typer.Option(help="Commit, branch or tag; the newest commit when not given.")]
File = Annotated[str | None, typer.Option(metavar="GLOB", help="Which of the repository's files.")]
Quant = Annotated[str | None, typer.Option(help="Which quantization, such as Q4_K_M.")]
LocalPath = Annotated[str | None, typer.Option("--path", metavar="PATH", help="Local weights instead of a repository.")]
EngineArgs = Annotated[
    list[str] | None,
    typer.Option("--engine-arg", metavar="ARG", help="An argument for the engine; repeat it for more."),
]


def share(value: float) -> float:
    """Raises BadParameter for anything but a share from 0 to 100."""
    if math.isnan(value) or not 0 <= value <= 100:
        raise typer.BadParameter(f"a share is a percentage from 0 to 100, not {value:g}")
    return value


def at_least_one(value: int) -> int:
    if value < 1:
        raise typer.BadParameter(f"at least 1 is needed, not {value}")
    return value


def weights(
    repo: str | None = None,
    revision: str | None = None,
    file: str | None = None,
    quant: str | None = None,
    path: str | None = None,
) -> WeightsChoice:
    """The choice as the daemon takes it, a path made absolute. Raises BadParameter when options exclude each other."""
    if path is not None:
        clashing = {"--repo": repo, "--revision": revision, "--file": file, "--quant": quant}
        if given := [option for option, value in clashing.items() if value is not None]:
            raise typer.BadParameter(f"--path takes weights from this machine, {', '.join(given)} from a repository")
        path = str(Path(path).expanduser().absolute())
    if file is not None and quant is not None:
        raise typer.BadParameter("--file and --quant both choose the files; give one of them")
    return WeightsChoice(repo=repo, revision=revision, file=file, quant=quant, path=path)
