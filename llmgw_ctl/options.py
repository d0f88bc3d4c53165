"""Arguments and options that several commands share."""

import math
import re
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from llmgw_ctl.completion import engine_names, job_ids, model_names
from llmgwd.protocol.messages import AdapterChoice, WeightsChoice

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

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be fetched and run, and start nothing.")]

Repo = Annotated[str | None, typer.Option(metavar="ORG/REPO", help="Hugging Face repository of the weights.")]
Revision = Annotated[str | None, typer.Option(help="Commit, branch or tag; the newest commit when not given.")]
File = Annotated[str | None, typer.Option(metavar="GLOB", help="Which of the repository's files.")]
Quant = Annotated[str | None, typer.Option(help="Which quantization, such as Q4_K_M.")]
AllowUnsafe = Annotated[
    bool, typer.Option("--allow-unsafe", help="Also weights that run their author's code when they are loaded.")
]
LocalPath = Annotated[str | None, typer.Option("--path", metavar="PATH", help="Local weights instead of a repository.")]
EngineArgs = Annotated[
    list[str] | None,
    typer.Option("--engine-arg", metavar="ARG", help="An argument for the engine; repeat it for more."),
]
Engine = Annotated[
    str | None,
    typer.Option(metavar="ENGINE", help="Another engine than the model's.", autocompletion=engine_names),
]
Urls = Annotated[
    list[str] | None,
    typer.Option("--url", metavar="URL", help="Where somebody else serves it; repeat it for more."),
]
ServedName = Annotated[
    str | None, typer.Option("--served-name", metavar="NAME", help="What it is called at --url, when not NAME.")
]
KeyFile = Annotated[
    str | None, typer.Option("--key-file", metavar="FILE", help="File with the API key that --url asks for.")
]

Gpus = Annotated[
    int | None, typer.Option(metavar="N", help="GPUs that each replica has to itself.", min=0, show_default=False)
]
NoFitCheck = Annotated[
    bool, typer.Option("--no-fit-check", help="Start it whether it fits into memory or not, also on GPUs in use.")
]


Share = TypeVar("Share", float, float | None)


def share(value: Share) -> Share:
    """Raises BadParameter for anything but a share from 0 to 100, or none given."""
    if value is None:
        return value
    if math.isnan(value) or not 0 <= value <= 100:
        raise typer.BadParameter(f"a share is a percentage from 0 to 100, not {value:g}")
    return value


UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """`90s`, `30m`, `2h` in seconds. Raises BadParameter for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text.strip())
    if match is None or match[2] not in UNITS_S:
        raise typer.BadParameter(f"{text!r} is no duration; write 90s, 30m or 2h")
    return float(match[1]) * UNITS_S[match[2]]


def shares(text: str) -> tuple[float, ...]:
    """`5,25,50` as percents. Raises BadParameter for anything else."""
    try:
        return tuple(share(float(each)) for each in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} are no steps; write percents that rise, as in 5,25,50") from None


def limits(written: list[str] | None) -> dict[str, float | None]:
    """`ttft=1.1`, `bad_answers=+0.5`, `rejected=off` by name. Raises BadParameter for what is not written so.

    Which limits there are, and what they may be, the daemon knows.
    """
    found: dict[str, float | None] = {}
    for each in written or []:
        name, equals, value = each.partition("=")
        try:
            found[name.strip()] = None if value.strip().lower() == "off" else float(value.strip().removesuffix("x"))
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            raise typer.BadParameter(f"{each!r} is no limit; write ttft=1.1, bad_answers=+0.5 or rejected=off")
    if len(found) < len(written or []):
        raise typer.BadParameter("the same --limit is given twice; give each once")
    return found


def check_dry_run(dry_run: bool, others: dict[str, bool]) -> None:
    """Raises BadParameter for options that have nothing to do in a dry run."""
    given = [option for option, value in others.items() if value]
    if dry_run and given:
        raise typer.BadParameter(f"--dry-run starts nothing, so {', '.join(given)} could do nothing")


def at_least_one(value: int) -> int:
    if value < 1:
        raise typer.BadParameter(f"at least 1 is needed, not {value}")
    return value


def adapter_choice(text: str) -> AdapterChoice:
    """`legal=/srv/legal.gguf`, `legal=acme/legal-lora@v2`. Raises BadParameter for what is neither."""
    name, _, where = text.partition("=")
    if name and where.startswith(("/", ".", "~")):
        return AdapterChoice(name, path=str(Path(where).expanduser().absolute()))
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:@(\S+))?", where)
    if not name or match is None:
        raise typer.BadParameter(
            f"{text!r} is no adapter; write NAME=ORG/REPO, NAME=ORG/REPO@REVISION, or NAME=PATH, "
            "where a path begins with / . or ~"
        )
    return AdapterChoice(name, repo=match[1], revision=match[2])


def weights(
    repo: str | None = None,
    revision: str | None = None,
    file: str | None = None,
    quant: str | None = None,
    path: str | None = None,
    allow_unsafe: bool = False,
    urls: list[str] | None = None,
    served_name: str | None = None,
    key_file: str | None = None,
) -> WeightsChoice:
    """The choice as the daemon takes it, paths made absolute. Raises BadParameter when options exclude each other."""
    if urls:
        clashing = {"--repo": repo, "--revision": revision, "--file": file, "--quant": quant, "--path": path}
        given = [option for option, value in clashing.items() if value is not None]
        if given := [*given, *(["--allow-unsafe"] if allow_unsafe else [])]:
            raise typer.BadParameter(f"--url is served by somebody else, who has no use for {', '.join(given)}")
    elif served_name is not None or key_file is not None:
        raise typer.BadParameter("--served-name and --key-file say how to ask a --url, and there is none")
    if path is not None:
        clashing = {"--repo": repo, "--revision": revision, "--file": file, "--quant": quant}
        given = [option for option, value in clashing.items() if value is not None]
        if given := [*given, *(["--allow-unsafe"] if allow_unsafe else [])]:
            raise typer.BadParameter(f"--path takes weights from this machine, {', '.join(given)} from a repository")
        path = _absolute(path)
    if file is not None and quant is not None:
        raise typer.BadParameter("--file and --quant both choose the files; give one of them")
    return WeightsChoice(
        repo=repo,
        revision=revision,
        file=file,
        quant=quant,
        path=path,
        allow_unsafe=allow_unsafe,
        urls=tuple(urls or ()),
        served_name=served_name,
        key_file=None if key_file is None else _absolute(key_file),
    )


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())
