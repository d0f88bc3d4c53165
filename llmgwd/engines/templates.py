"""Engines as templates: the command line that serves weights, and how one sees that it is ready.

In `argv` these stand for what they say: `{path}` the weights file (a set's first shard) or folder, `{projector}` the
file that lets a GGUF model see, `{name}` the name the engine answers to, `{host}`, `{port}`, `{replica}` the replica's
id, `{revision}` the weights' revision, `{gpus}` how many GPUs it is given and at least 1. `{{` and `}}` are braces. No
shell is involved.

For weights without a projector, the argument that names it is left out with the option in front of it.
"""

import re
import shutil
from collections.abc import Iterable, Mapping

import msgspec

from llmgwd.domain.errors import unusable
from llmgwd.protocol.states import WeightsFormat

FIELDS = ("path", "projector", "name", "host", "port", "replica", "revision", "gpus")


class AdapterTemplate(msgspec.Struct, frozen=True):
    """How an engine takes adapters; what stands in braces is said in `llmgwd.engines.adapters`.

    They are of the format of its weights: a GGUF file, or a folder.
    """

    each: tuple[str, ...]
    """On the command line, once for each adapter."""
    argv: tuple[str, ...] = ()
    """Before them, once."""
    asked_as: str = "{name}"
    """The model name of a request for one."""
    fields: dict[str, str] = {}
    """Members of its JSON body besides, as JSON."""


class Engine(msgspec.Struct, frozen=True):
    """One way to serve weights."""

    argv: tuple[str, ...]
    """Empty: somebody else runs it."""
    health: str = "/health"
    """Path that answers 200 once the weights are loaded; empty: only a real completion tells."""
    ready_timeout_s: float = 600.0
    env: dict[str, str] = {}
    slots: int | None = None
    """Requests that it decodes at once when its command line does not say; None: not known."""
    probe_every_s: float = 30.0
    """How often a replica that has no requests is asked for a token."""
    probe_timeout_s: float = 60.0
    """How long it may take to answer that."""
    weights: WeightsFormat = WeightsFormat.ANY
    own_name: str = "{name}"
    """The model name that it has to be asked for."""
    takes_colons: bool = True
    """Whether it can be called by a name with a colon in it."""
    lists_itself: bool = False
    """Whether its `/v1/models` lists the name it was given: then another that answers in its place is found out."""
    first_answer_s: float = 120.0
    """How long its first answer may take once its health page says 200."""
    stop_grace_s: float = 10.0
    """How long it may take to end before it is killed."""
    gpus: int = 0
    """GPUs that a replica takes where its model does not say."""
    program: str = ""
    """What has to be on the path, where that is not the first word of argv."""
    adapters: AdapterTemplate | None = None
    """None: it takes none."""

    @property
    def is_external(self) -> bool:
        return not self.argv


PROJECTOR = "{projector}"

SLOT_OPTIONS = ("--parallel", "-np", "--max-num-seqs", "--max-running-requests", "--decode-concurrency")
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
    following = (*argv, "")[1:]
    return tuple(
        word
        for word, after in zip(argv, following, strict=True)
        if PROJECTOR not in word.replace("{{", "") and not (after == PROJECTOR and word.startswith("-"))
    )


def named(engine: Engine, name: str) -> str:
    """What an engine that serves a model of this name has to be asked for."""
    return engine.own_name.replace("{name}", name if engine.takes_colons else name.replace(":", "_"))


def program(engine: Engine) -> str:
    """What has to be installed for it; empty for an external one."""
    return engine.program or next(iter(engine.argv), "")


def find_program(engine: Engine) -> str | None:
    """Where the engine's program is, by the path it is started with; None when it is not there."""
    return shutil.which(program(engine), path=engine.env.get("PATH"))


def slots(engine: Engine, extra: tuple[str, ...]) -> int | None:
    """Requests that one replica decodes at once, by the last word of its command line; None when nothing tells."""
    words = (*engine.argv, *extra)
    told = [value for word, after in zip(words, (*words, "")[1:], strict=True) if (value := _slots_in(word, after))]
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
