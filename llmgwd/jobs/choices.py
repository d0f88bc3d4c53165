"""What was asked for, checked before anything is fetched: weights, engine and what of it goes together."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from llmgwd.config import EXTERNAL
from llmgwd.domain.catalog import Adapter, Model, Origin, candidate, moved
from llmgwd.domain.errors import LlmgwError, refused, unusable
from llmgwd.domain.urls import place_of
from llmgwd.engines.adapters import check_takes_adapters
from llmgwd.engines.key_file import read_key
from llmgwd.engines.templates import Engine, find_engine
from llmgwd.protocol.messages import AddModel, StartCanary, Update, WeightsChoice
from llmgwd.protocol.states import WeightsFormat
from llmgwd.weights.choice import entry_file


def check_choice(chosen: WeightsChoice) -> None:
    """Raises LlmgwError unless the parts of a choice go together."""
    of_repository = any((chosen.repo, chosen.revision, chosen.file, chosen.quant))
    if chosen.path is not None and of_repository:
        raise unusable(
            "bad_weights", "local weights (--path) cannot be combined with --repo, --revision, --file, --quant"
        )
    if chosen.file and chosen.quant:
        raise unusable("bad_weights", "give --file or --quant, not both: each chooses the files by itself")
    if chosen.urls and (of_repository or chosen.path is not None):
        raise unusable("bad_weights", "what others serve (--url) has no weights here; leave out --repo, --path, --file")
    if not chosen.urls and (chosen.served_name or chosen.key_file):
        raise unusable("bad_weights", "--served-name and --key-file belong to a --url")
    places = [place_of(url) for url in chosen.urls]
    if len(set(places)) < len(places):
        raise unusable("bad_weights", "the same --url is given twice: each is a replica of its own")
    read_key(chosen.key_file)


def engine_of(request: AddModel | StartCanary | Update, model: Model | None) -> str:
    """The engine that was asked for: by name, by a URL, or by saying nothing."""
    if isinstance(request, AddModel):
        return request.engine
    assert model is not None
    if isinstance(request, StartCanary) and request.engine is not None:
        return request.engine
    if isinstance(request, StartCanary) and request.weights.urls:
        return EXTERNAL
    return model.engine


def check_engine(
    request: AddModel | StartCanary | Update, model: Model | None, engines: Mapping[str, Engine]
) -> Engine:
    """The engine of the request. Raises LlmgwError unless it exists and goes with the weights that are asked for."""
    name = engine_of(request, model)
    engine = find_engine(name, engines)
    if engine.is_external and not request.weights.urls and not (model and _is_as_before(request, model)):
        raise unusable(
            "no_url",
            f"{name} serves nothing by itself: where is {request.name}?",
            hint="give --url http://HOST:PORT, or another --engine",
        )
    if request.weights.urls and not engine.is_external:
        raise unusable(
            "bad_engine",
            f"{name} serves weights that are here, and a --url has none",
            hint=f"leave --url out, or give --engine {EXTERNAL}",
        )
    if engine.is_external and not isinstance(request, Update) and request.engine_args:
        raise unusable("bad_engine", f"{name} is not started here, so that no --engine-arg can reach it")
    if engine.is_external and not isinstance(request, Update) and request.gpus:
        raise unusable("bad_engine", f"{name} is not started here, so that it cannot be given GPUs")
    if request.adapters if isinstance(request, AddModel) else model and model.adapters:
        check_takes_adapters(name, engines)
    for adapter in model.adapters if model is not None else ():
        check_fits(name, engines, adapter.origin)
    return engine


def _is_as_before(request: AddModel | StartCanary | Update, model: Model) -> bool:
    """Whether it is for the model's own repository to say what is newer, which one that others serve has not."""
    return request.weights == WeightsChoice() and engine_of(request, model) == model.engine


def check_fits(name: str, engines: Mapping[str, Engine], origin: Origin) -> None:
    """Raises LlmgwError when the engine cannot load weights of this format."""
    wanted, found = find_engine(name, engines).weights, format_of(origin)
    if WeightsFormat.ANY in (wanted, found) or wanted is found:
        return
    fitting = sorted(each for each, engine in engines.items() if engine.weights is found)
    words = {WeightsFormat.GGUF: "GGUF files", WeightsFormat.FOLDER: "a folder of safetensors"}
    raise refused(
        "wrong_format",
        f"{name} serves {words.get(wanted, wanted)}, and {origin.repo or origin.path} at {origin.short} has "
        f"{words.get(found, found)}",
        hint=f"{words.get(found, found)} fit {' and '.join(fitting)}: say so with --engine; "
        "or give a --repo or --path with the other",
    )


def format_of(origin: Origin) -> WeightsFormat:
    """By the names of the files; `any` when these do not tell."""
    if origin.urls:
        return WeightsFormat.NONE
    if entry_file(origin.files) is not None:
        return WeightsFormat.GGUF
    if _has(origin.files, ".safetensors", ".bin", ".pt", ".pth"):
        return WeightsFormat.FOLDER
    return WeightsFormat.ANY


def _has(files: Iterable[str], *suffixes: str) -> bool:
    return any(Path(file).suffix in suffixes for file in files)


def runs_otherwise(request: AddModel | StartCanary | Update, model: Model) -> bool:
    """Whether a canary is to run otherwise than its model: a change worth a canary on the same weights."""
    if not isinstance(request, StartCanary):
        return False
    has_other_args = request.engine_args is not None and request.engine_args != model.engine_args
    has_other_gpus = request.gpus is not None and request.gpus != model.gpus
    return has_other_args or has_other_gpus or engine_of(request, model) != model.engine


def check_source(request: StartCanary | Update, model: Model) -> None:
    """Raises LlmgwError when nobody says where newer weights come from."""
    wanted = request.weights
    if wanted.repo or wanted.path or wanted.urls or model.origin.repo:
        return
    if model.origin.path is None or not runs_otherwise(request, model):
        raise no_repository(model)


def gpus_of(request: AddModel | StartCanary, model: Model | None, engines: Mapping[str, Engine]) -> int:
    """GPUs of each replica: as asked for, else as the model has; on another engine no fewer than that one says."""
    engine = find_engine(engine_of(request, model), engines)
    if engine.is_external:
        return 0
    if request.gpus is not None:
        return request.gpus
    if model is None:
        return engine.gpus
    return model.gpus if engine_of(request, model) == model.engine else max(model.gpus, engine.gpus)


def new_row(
    request: AddModel,
    origin: Origin,
    engines: Mapping[str, Engine],
    fallbacks: tuple[str, ...] = (),
    adapters: tuple[Adapter, ...] = (),
) -> Model:
    """The row of a model that is added."""
    return Model(
        name=request.name,
        origin=origin,
        engine=request.engine,
        engine_args=request.engine_args,
        replicas=len(origin.urls) or request.replicas,
        aliases=request.aliases,
        fallbacks=fallbacks,
        description=request.description,
        adapters=adapters,
        gpus=gpus_of(request, None, engines),
        fit_check=request.fit_check,
    )


def wanted_row(request: StartCanary | Update, model: Model, coming: Origin, engines: Mapping[str, Engine]) -> Model:
    """The row that a canary would have, or the model once it is updated."""
    if isinstance(request, Update):
        return moved(model, coming, model.engine_args, fit_check=request.fit_check)
    gpus = gpus_of(request, model, engines)
    engine = engine_of(request, model)
    return candidate(model, coming, request.engine_args, engine, gpus=gpus, fit_check=request.fit_check)


def no_repository(model: Model) -> LlmgwError:
    where = "another --url URL" if model.origin.urls else "--repo ORG/REPO, or --path FILE"
    return refused(
        "no_repository",
        f"{model.name} has no repository to take newer weights from",
        hint=f"say where they come from: `llmgw ctl model canary {model.name}` with {where}",
    )
