"""What models may be called. All that clients can ask for is one set: names, aliases, adapters under each of them."""

import re
from collections.abc import Collection, Iterable, Sequence

from llmgwd.domain.catalog import CANARY_SUFFIX, Model, no_such_model
from llmgwd.domain.errors import refused, unusable

MOST_CHARACTERS = 120
_PART = r"[A-Za-z0-9][A-Za-z0-9._:@+-]*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")
_ADAPTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_new_name(name: str, aliases: Sequence[str], adapters: Sequence[str], taken: Collection[str]) -> None:
    """Raises unless a model of this name, these aliases and adapters may be added beside all that is taken."""
    for each in (name, *aliases):
        _check_name(each)
    for each in adapters:
        if not _ADAPTER.fullmatch(each):
            raise unusable(
                "bad_name",
                f"{each!r} cannot be an adapter's name: 1 to 64 letters (a to z), digits and . _ -, "
                "the first a letter or digit",
            )
    new = asked_for(name, aliases, adapters)
    for each in new:
        if each.endswith(CANARY_SUFFIX):
            raise unusable("reserved_name", f"{each} is reserved: names ending in {CANARY_SUFFIX} belong to canaries")
        if each in taken:
            raise refused("name_taken", f"there is already a model, alias or adapter {each}")
    if len(set(new)) != len(new):
        raise unusable("name_twice", f"{name}, its aliases and its adapters must all differ")


def _check_name(name: str) -> None:
    if len(name) > MOST_CHARACTERS or not _NAME.fullmatch(name):
        shown = name if len(name) <= MOST_CHARACTERS else name[:MOST_CHARACTERS] + "…"
        raise unusable(
            "bad_name",
            f"{shown!r} cannot be a model's name: 1 to {MOST_CHARACTERS} letters (a to z), digits and . _ : @ + -, "
            "with / between parts, each of which begins with a letter or digit",
        )


def asked_for(name: str, aliases: Iterable[str], adapters: Iterable[str]) -> tuple[str, ...]:
    """All that clients may ask for: the model's names, and each adapter as `NAME:ADAPTER` under each of them."""
    own = (name, *aliases)
    return (*own, *(f"{each}:{adapter}" for adapter in adapters for each in own))


def _asked_for(model: Model) -> tuple[str, ...]:
    return asked_for(model.name, model.aliases, (adapter.name for adapter in model.adapters))


def names(models: Iterable[Model]) -> set[str]:
    """All that clients may ask for of these."""
    return {each for model in models for each in _asked_for(model)}


def fallbacks_of(
    name: str, aliases: Collection[str], wanted: Iterable[str], models: Collection[Model]
) -> tuple[str, ...]:
    """The models that are meant by these names or aliases. Raises LlmgwError for one that is none, or the model itself.

    They may name each other in turn: only the list of the model that is asked for counts.
    """
    by_name = {each: model.name for model in models if model.canary_of is None for each in (*model.aliases, model.name)}
    found: list[str] = []
    for each in wanted:
        if each == name or each in aliases or by_name.get(each) == name:
            raise unusable("own_fallback", f"{name} cannot fall back on itself: name other models")
        if each not in by_name:
            raise no_such_model(each, models)
        if by_name[each] in found:
            raise unusable("fallback_twice", f"{by_name[each]} is given twice as a fallback of {name}; give it once")
        found.append(by_name[each])
    return tuple(found)
