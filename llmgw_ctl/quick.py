"""Typer's parameters without its validators where the value needs none.

Typer builds a validator for every parameter of a command, given or not, and with the first one imports pydantic, which
takes longer than all else that a listing does. Text is text already, a default is right as it stands and a number is
one call; whatever else comes, Typer's own way takes it and words its errors.
"""

from collections.abc import Callable, Sequence
from typing import Any, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

Slow = Callable[[typer.Context, Any], Any]


class QuickOption(TyperOption):
    def process_value(self, ctx: typer.Context, value: Any) -> Any:  # type: ignore[override]
        return _processed(self, ctx, value, super().process_value)


class QuickArgument(TyperArgument):
    def process_value(self, ctx: typer.Context, value: Any) -> Any:  # type: ignore[override]
        return _processed(self, ctx, value, super().process_value)


class QuickCommand(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return _quick(super().get_params(ctx))


class QuickGroup(TyperGroup):
    def get_params(self, ctx: Any) -> Any:
        return _quick(super().get_params(ctx))


def quicken(command: Any) -> None:
    """Makes a command and all below it take their parameters quickly, `--help` among them."""
    # Typer makes commands and parameters itself and names their classes; theirs are changed rather than built again.
    if isinstance(command, TyperGroup):
        command.__class__ = QuickGroup
        for below in command.commands.values():
            quicken(below)
    else:
        command.__class__ = QuickCommand


def _quick(params: Any) -> Any:
    for param in params:
        if not hasattr(param, "type_descriptor"):
            # Typer before it had validators: nothing to go around.
            continue
        if type(param) is TyperOption:
            param.__class__ = QuickOption
        elif type(param) is TyperArgument:
            param.__class__ = QuickArgument
    return params


def _processed(param: TyperOption | TyperArgument, ctx: typer.Context, value: Any, slow: Slow) -> Any:
    try:
        ready = taken(param.type_descriptor.annotation, value)
    except ValueError:
        return slow(ctx, value)
    if param.required and param.value_is_missing(ready):
        return slow(ctx, value)
    return ready if param.callback is None else param.callback(ctx, param, ready)


def taken(annotation: Any, value: Any) -> Any:
    """The value as the annotation wants it. Raises ValueError when that is not for this module to say."""
    if value is None:
        return None
    if get_origin(annotation) is list:
        (element,) = get_args(annotation)
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [taken(element, each) for each in value]
    elif annotation in (str, bool, int, float):
        if isinstance(value, annotation):
            return value
        if annotation in (int, float) and isinstance(value, str):
            return annotation(value)
    raise ValueError(f"{value!r} is not taken as {annotation!r}")
