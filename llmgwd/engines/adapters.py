"""LoRA adapters on an engine's command line and in requests for them, as its template says. Pure.

In an engine's `adapters` these stand for what they say: `{name}` the name the engine answers to, `{adapter}` the
adapter's, `{index}` its place among them, from 0, and in `each` `{path}` its file or folder.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from llmgwd.domain.errors import unusable
from llmgwd.engines.templates import AdapterTemplate, Engine, fill
from llmgwd.protocol.link import AdapterRoute

ASKED_FIELDS = ("name", "adapter", "index")
EACH_FIELDS = (*ASKED_FIELDS, "path")


class AdapterOnDisk(msgspec.Struct, frozen=True):
    """What an engine is given of an adapter. It is not kept apart whether a file or a folder."""

    name: str
    path: Path


def adapter_words(engine: Engine, served_name: str, adapters: Iterable[AdapterOnDisk]) -> list[str]:
    """What the command line gets for these adapters; nothing for none."""
    template, values = engine.adapters, list(_values(served_name, adapters))
    if template is None or not values:
        return []
    return [*template.argv, *(fill(word, each) for each in values for word in template.each)]


def adapter_routes(engine: Engine, served_name: str, adapters: Iterable[AdapterOnDisk]) -> tuple[AdapterRoute, ...]:
    """How each of them is asked for."""
    template = engine.adapters
    if template is None:
        return ()
    return tuple(
        AdapterRoute(
            each["adapter"],
            fill(template.asked_as, each),
            tuple((name, fill(value, each)) for name, value in template.fields.items()),
        )
        for each in _values(served_name, adapters)
    )


def _values(served_name: str, adapters: Iterable[AdapterOnDisk]) -> Iterable[dict[str, str]]:
    for index, each in enumerate(adapters):
        yield {"name": served_name, "adapter": each.name, "index": str(index), "path": str(each.path)}


def check_takes_adapters(name: str, engines: Mapping[str, Engine]) -> None:
    """Raises LlmgwError when the engine of this name takes no adapters."""
    if engines[name].adapters is None:
        able = ", ".join(sorted(each for each, engine in engines.items() if engine.adapters is not None))
        raise unusable("no_adapters", f"the engine {name} takes no adapters; there are {able}, which do")


def check_template(where: str, template: AdapterTemplate) -> None:
    """Raises unless every `{field}` is known, the path is passed on, and each member of a body is JSON."""
    _check_filled(f"{where}.argv", template.argv, ())
    _check_filled(f"{where}.each", template.each, EACH_FIELDS)
    _check_filled(f"{where}.asked_as", (template.asked_as,), ASKED_FIELDS)
    _check_filled(f"{where}.fields", tuple(template.fields.values()), ASKED_FIELDS)
    if not any("{path}" in word for word in template.each):
        raise unusable("bad_config", f"{where}.each does not say {{path}}: what would it load?")
    for name, value in template.fields.items():
        filled = fill(value, dict.fromkeys(ASKED_FIELDS, "0"))
        try:
            msgspec.json.decode(filled)
        except msgspec.DecodeError as error:
            raise unusable("bad_config", f"{where}.fields.{name} is {value!r}: expected JSON") from error
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name == "model":
            raise unusable("bad_config", f"{where}.fields has {name!r}: expected a member's name other than model")


def _check_filled(where: str, words: tuple[str, ...], fields: tuple[str, ...]) -> None:
    for word in words:
        try:
            fill(word, dict.fromkeys(fields, ""))
        except (KeyError, ValueError, IndexError) as error:
            known = ", ".join("{" + field + "}" for field in fields)
            expected = f"only {known} in braces" if fields else "nothing in braces"
            raise unusable("bad_config", f"{where} is {word!r}: expected {expected}") from error
