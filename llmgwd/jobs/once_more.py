"""The command that asks for a refused canary once more, as it was asked for the first time."""

import shlex

from llmgwd.protocol.messages import StartCanary
from llmgwd.protocol.states import OnDeadline


def once_more(request: StartCanary) -> str:
    """With --again, and quoted for a shell; what was left at its default is left out."""
    words = [
        "llmgw",
        "ctl",
        "model",
        "canary",
        request.name,
        *_weights(request),
        *_run(request),
        *_share(request),
        *_judging(request),
    ]
    return shlex.join([*words, "--again"])


def _weights(request: StartCanary) -> list[str]:
    chosen = request.weights
    words = [word for url in chosen.urls for word in ("--url", url)]
    given = {
        "--served-name": chosen.served_name,
        "--key-file": chosen.key_file,
        "--path": chosen.path,
        "--repo": chosen.repo,
        "--revision": chosen.revision,
        "--file": chosen.file,
        "--quant": chosen.quant,
    }
    words += [word for option, value in given.items() if value is not None for word in (option, value)]
    return [*words, "--allow-unsafe"] if chosen.allow_unsafe else words


def _run(request: StartCanary) -> list[str]:
    words = ["--engine", request.engine] if request.engine is not None else []
    words += [word for each in request.engine_args or () for word in ("--engine-arg", each)]
    words += ["--gpus", str(request.gpus)] if request.gpus is not None else []
    return words if request.fit_check else [*words, "--no-fit-check"]


def _share(request: StartCanary) -> list[str]:
    words: list[str] = []
    if request.steps:
        words += ["--steps", ",".join(map(_number, request.steps))]
    elif request.percent != StartCanary(request.name).percent:
        words += ["--percent", _number(request.percent)]
    # Steps that are asked for without a hold get one from the command line.
    if request.steps or request.hold_s:
        words += ["--hold", f"{_number(request.hold_s)}s"]
    return words


def _judging(request: StartCanary) -> list[str]:
    words = ["--auto-promote"] if request.auto_promote else []
    if request.deadline_s is not None:
        words += ["--deadline", f"{_number(request.deadline_s)}s"]
        words += ["--on-deadline", request.on_deadline] if request.on_deadline is not OnDeadline.HOLD else []
    for name, value in request.limits.items():
        words += ["--limit", f"{name}={'off' if value is None else _number(value)}"]
    return [*words, "--ignore-load"] if request.ignore_load else words


def _number(value: float) -> str:
    return f"{value:.10g}"
