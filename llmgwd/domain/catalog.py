"""The catalog's records: models and where their weights come from."""

import hashlib
from collections.abc import Iterable

import msgspec

from llmgwd.domain.errors import LlmgwError, refused, unknown
from llmgwd.domain.files import RepoFile
from llmgwd.domain.traits import Traits

CANARY_SUFFIX = "-canary"


class Origin(msgspec.Struct, frozen=True):
    """Where weights come from, files of a repository at a pinned revision or a local path, and what they are."""

    repo: str | None = None
    revision: str | None = None
    """40-hex commit."""
    files: tuple[str, ...] = ()
    size_bytes: int | None = None
    path: str | None = None
    """Absolute; only for local weights."""
    urls: tuple[str, ...] = ()
    """Where somebody else serves them; each is a replica."""
    served_name: str | None = None
    """The model name that is asked for at `urls`, where it is not the model's own."""
    key_file: str | None = None
    """Absolute path of the file with the API key for `urls`."""
    contents: tuple[RepoFile, ...] = ()
    """`files` with sizes and hashes; empty when they were never hashed."""
    traits: Traits | None = None

    @property
    def short(self) -> str:
        """How people call it: the revision's first seven digits, or the path and those of what was in it."""
        if self.revision:
            return self.revision[:7]
        if self.urls:
            return ", ".join(self.urls) + (f" ({self.served_name})" if self.served_name else "")
        content = self.content
        return (self.path or "nothing") + (f" ({content[:7]})" if content else "")

    @property
    def content(self) -> str | None:
        """One hash for all of it: of a single large file its sha256, of several that of what `sha256sum` prints."""
        if not self.contents:
            return None
        if len(self.contents) == 1 and self.contents[0].sha256:
            return self.contents[0].sha256
        lines = sorted(f"{file.sha256 or file.blob_id}  {file.path}\n" for file in self.contents)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """What a roll-back is remembered by: repository and revision, and under no repository the content.

        A later commit that touches only a README has the same content, and so have local weights wherever they lie.
        What is behind a URL is not known: there it is the URL.
        """
        if self.urls:
            return (("url", self.short),)
        revision = ((self.repo, self.revision),) if self.repo and self.revision else ()
        return (*revision, ("", self.content)) if self.content else revision


class Adapter(msgspec.Struct, frozen=True):
    """A LoRA adapter of a model, which clients ask for as `MODEL:NAME`."""

    name: str
    origin: Origin


class Model(msgspec.Struct, frozen=True):
    """One row of the catalog."""

    name: str
    origin: Origin
    engine: str = "llamacpp"
    engine_args: tuple[str, ...] = ()
    replicas: int = 1
    gpus: int = 0
    """That each replica has to itself."""
    fit_check: bool = True
    """Whether replicas are started only where they fit."""
    aliases: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    description: str = ""
    previous: Origin | None = None
    previous_engine_args: tuple[str, ...] | None = None
    """With `previous`: the engine arguments it ran with, when the promoted canary brought others."""
    previous_gpus: int | None = None
    previous_engine: str | None = None
    """With `previous`: the engine it ran on; null is the present one."""
    declared: bool = False
    """Written in the configuration, and changed only there."""
    canary_of: str | None = None
    adapters: tuple[Adapter, ...] = ()

    @property
    def served_name(self) -> str:
        """The name its engine answers to: a canary's engine answers to its model's, so that it can become it."""
        return self.canary_of or self.name


def canary_name(model: str) -> str:
    return model + CANARY_SUFFIX


def candidate(
    model: Model,
    origin: Origin,
    engine_args: tuple[str, ...] | None,
    engine: str | None = None,
    *,
    gpus: int | None = None,
    fit_check: bool = True,
) -> Model:
    """The canary of a model: the model in everything but its weights and what was asked for (K1).

    Arguments of one engine mean nothing to another, so that a canary on another has none but its own.
    """
    engine = engine or model.engine
    if engine_args is None:
        engine_args = model.engine_args if engine == model.engine else ()
    return Model(
        name=canary_name(model.name),
        origin=origin,
        engine=engine,
        engine_args=engine_args,
        replicas=1,
        gpus=model.gpus if gpus is None else gpus,
        fit_check=fit_check,
        description=f"canary of {model.name} at {origin.short}",
        canary_of=model.name,
    )


def moved(
    model: Model,
    origin: Origin,
    engine_args: tuple[str, ...],
    engine: str | None = None,
    *,
    gpus: int | None = None,
    fit_check: bool = True,
) -> Model:
    """The model on other weights; what it ran on is kept as its previous."""
    return msgspec.structs.replace(
        model,
        origin=origin,
        engine=engine or model.engine,
        engine_args=engine_args,
        replicas=len(origin.urls) or model.replicas,
        previous=model.origin,
        previous_engine_args=model.engine_args,
        previous_engine=model.engine,
        gpus=model.gpus if gpus is None else gpus,
        fit_check=fit_check,
        previous_gpus=model.gpus,
    )


def moved_back(model: Model, *, fit_check: bool = True) -> Model:
    """The model on its previous weights, and those it leaves as its previous. Raises when it has none."""
    before = as_before(model)
    if before is None:
        raise refused("no_previous", f"{model.name} has no previous weights to go back to")
    return moved(model, before.origin, before.engine_args, before.engine, gpus=before.gpus, fit_check=fit_check)


def as_before(model: Model) -> Model | None:
    """The model as it ran before it last moved; None when it never did."""
    if model.previous is None:
        return None
    args = model.engine_args if model.previous_engine_args is None else model.previous_engine_args
    return msgspec.structs.replace(
        model,
        origin=model.previous,
        engine_args=args,
        engine=model.previous_engine or model.engine,
        gpus=model.gpus if model.previous_gpus is None else model.previous_gpus,
    )


def without_fallback(models: Iterable[Model], gone: str) -> list[Model]:
    """Those of the models that fall back on the one that is gone, each with the rest of its list."""
    return [
        msgspec.structs.replace(model, fallbacks=tuple(each for each in model.fallbacks if each != gone))
        for model in models
        if gone in model.fallbacks
    ]


def no_such_model(name: str, models: Iterable[Model]) -> LlmgwError:
    """The error for a name that nobody has, with the nearest that somebody has."""
    import difflib

    known = sorted(model.name for model in models if model.canary_of is None)
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return unknown("no_such_model", f"there is no model {name}; did you mean {near[0]}?")
    listed = ", ".join(known) or "none yet"
    return unknown("no_such_model", f"there is no model {name}", hint=f"models here: {listed}")
