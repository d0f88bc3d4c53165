"""Engines as templates: the command line that serves weights, and how one sees that it is ready.

In `argv` these stand for what they say: `{path}` the weights file (a set's first shard) or folder, `{projector}` the
file that lets a GGUF model see, `{name}` the name the engine answers to, `{host}`, `{port}`, `{replica}` the replica's
id, `{revision}` the weights' revision, `{gpus}` how many GPUs it is given and at least 1. `{{` and `}}` are braces. No
shell is involved.

For weights without a projector, the argument that names it is left out with the option in front of it.
"""

import re
import sys
from collections.abc import Iterable, Mapping

import msgspec

from llmgwd.domain.adapters import AdapterFormat
from llmgwd.domain.errors import unusable

FIELDS = ("path", "projector", "name", "host", "port", "replica", "revision", "gpus")


class AdapterTemplate(msgspec.Struct, frozen=True):
    """How an engine takes adapters; what stands in braces is said in `llmgwd.engines.adapters`."""

    each: tuple[str, ...]
    """On the command line, once for each adapter."""
    argv: tuple[str, ...] = ()
    """Before them, once."""
    asked_as: str = "{name}"
    """The model name of a request for one."""
    fields: dict[str, str] = {}
    """Members of its JSON body besides, as JSON."""
    format: AdapterFormat = AdapterFormat.ANY


class Engine(msgspec.Struct, frozen=True):
    """One way to serve weights."""

    argv: tuple[str, ...]
    health: str = "/health"
    """Path that answers 200 once the weights are loaded."""
    ready_timeout_s: float = 600.0
    env: dict[str, str] = {}
    slots: int | None = None
    """Requests that it decodes at once when its command line does not say; None: not known."""
    probe_every_s: float = 30.0
    """How often a replica that has no requests is asked for a token."""
    probe_timeout_s: float = 60.0
    """How long it may take to answer that."""
    adapters: AdapterTemplate | None = None
    """None: it takes none."""
    gpus: int = 0
    """GPUs that a replica takes where its model does not say."""


PRESETS: dict[str, Engine] = {
    "llamacpp": Engine(
        argv=(
            sys.executable,
            "-m",
            "llmgwd.engines.embedded",
            "--model",
            "{path}",
            "--mmproj",
            "{projector}",
            "--alias",
            "{name}",
            "--host",
            "{host}",
            "--port",
            "{port}",
        ),
        slots=4,
        adapters=AdapterTemplate(
            each=("--lora", "{path}"),
            fields={"lora": '[{{"id":{index},"scale":1.0}}]'},
            format=AdapterFormat.GGUF,
        ),
    ),
}

PROJECTOR = "{projector}"

SLOT_OPTIONS = ("--parallel", "-np", "--max-num-seqs", "--max-running-requests")
"""What llama.cpp, vLLM and SGLang call the number of requests decoded at once."""


def check_argv(where: str, argv: tuple[str, ...]) -> None:
    """Raises unless every `{field}` in it is known and the address is passed on."""
    for argument in argv:
        try:
            fill(argument, dict.fromkeys(FIELDS, ""))
        except (KeyError, ValueError, IndexError) as error:
            known = ", ".join("{" + field + "}" for field in FIELDS)
            raise unusable("bad_config", f"{where} is {argument!r}: expected only {known} in braces") from error
    if not any("{port}" in argument for argument in argv):
        raise unusable("bad_config", f"{where} does not say {{port}}: where would it listen?")


def command(
    engine: Engine, extra: tuple[str, ...], values: Mapping[str, str], adapters: Iterable[str] = ()
) -> list[str]:
    """The command line of one replica: the engine's words, those for its adapters, then the model's own."""
    argv = fitting(engine.argv, has_projector=bool(values["projector"]))
    return [*(fill(argument, values) for argument in argv), *adapters, *extra]


def fitting(argv: tuple[str, ...], *, has_projector: bool) -> tuple[str, ...]:
    """The template for these weights: without a projector, neither what names it (`--mmproj={projector}`) nor, where
    that is a word of its own, the option in front of it (`--mmproj {projector}`).
    """
    if has_projector:
        return argv
    following = (*argv[1:], "")
    return tuple(
        word
        for word, after in zip(argv, following, strict=True)
        if PROJECTOR not in word.replace("{{", "") and not (after == PROJECTOR and word.startswith("-"))
    )


def slots(engine: Engine, extra: tuple[str, ...]) -> int | None:
    """Requests that one replica decodes at once, by the last word of its command line; None when nothing tells."""
    words = (*engine.argv, *extra)
    told = [value for word, after in zip(words, (*words[1:], ""), strict=True) if (value := _slots_in(word, after))]
    return told[-1] if told else engine.slots


def _slots_in(word: str, after: str) -> int | None:
    option, equals, value = word.partition("=")
    if option not in SLOT_OPTIONS:
        return None
    number = value if equals else after
    return int(number) if number.isascii() and number.isdigit() else None


def fill(argument: str, values: Mapping[str, str]) -> str:
    """Raises KeyError, ValueError or IndexError for a field that is not among the values."""
    # Not str.format: an attribute or index such as {path.parent} must be refused, not evaluated.
    if re.search(r"\{[^{}]*[^a-z{}][^{}]*\}", argument.replace("{{", "").replace("}}", "")):
        raise ValueError(argument)
    return argument.format_map(values)


def find_engine(name: str, engines: Mapping[str, Engine]) -> Engine:
    """Raises when no engine has this name."""
    if name not in engines:
        raise unusable("no_such_engine", f"there is no engine {name}; there are {', '.join(sorted(engines))}")
    return engines[name]
