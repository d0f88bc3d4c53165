"""What goes together in a request, and what engine it means."""

from typing import Any

import pytest

from llmgwd.domain.catalog import Model, Origin
from llmgwd.domain.errors import LlmgwError
from llmgwd.engines.presets import PRESETS
from llmgwd.engines.templates import Engine
from llmgwd.jobs.choices import check_engine, check_fits, engine_of, format_of, new_row, runs_otherwise, wanted_row
from llmgwd.protocol.messages import AddModel, StartCanary, WeightsChoice
from llmgwd.protocol.states import WeightsFormat

ENGINES = {**PRESETS, "toy": Engine(("toy", "{port}"))}
HERE = Model("chat", Origin(repo="a/b", revision="1" * 40, files=("m.gguf",)), engine_args=("-c", "8"))
THERE = Model("chat", Origin(urls=("http://a",)), engine="external")
LARGE = Model("chat", Origin(repo="a/b", revision="1" * 40), engine="vllm", gpus=4)
URL, HUB = WeightsChoice(urls=("http://b",)), WeightsChoice(repo="a/b")


@pytest.mark.parametrize(
    ("model", "asked", "engine", "args", "otherwise"),
    [
        (HERE, {}, "llamacpp", ("-c", "8"), False),
        (HERE, {"engine": "llamacpp"}, "llamacpp", ("-c", "8"), False),
        (HERE, {"engine_args": ("-c", "8")}, "llamacpp", ("-c", "8"), False),
        (HERE, {"engine_args": ("-c", "9")}, "llamacpp", ("-c", "9"), True),
        (HERE, {"engine": "llama-server"}, "llama-server", (), True),
        (HERE, {"engine": "llama-server", "engine_args": ("-x",)}, "llama-server", ("-x",), True),
        (HERE, {"weights": URL}, "external", (), True),
        (THERE, {"weights": URL}, "external", (), False),
        (THERE, {"engine": "vllm", "weights": WeightsChoice(repo="a/b")}, "vllm", (), True),
    ],
)
def test_a_canary_runs_as_its_model_unless_something_else_was_asked_for(
    model: Model, asked: dict[str, Any], engine: str, args: tuple[str, ...], otherwise: bool
) -> None:
    request = StartCanary("chat", **asked)
    assert engine_of(request, model) == engine
    assert check_engine(request, model, ENGINES) == ENGINES[engine]
    assert runs_otherwise(request, model) is otherwise
    row = wanted_row(request, model, Origin(), ENGINES)
    assert (row.engine, row.engine_args) == (engine, args)


@pytest.mark.parametrize(
    ("model", "asked", "gpus", "otherwise"),
    [
        (HERE, {}, 0, False),
        (HERE, {"gpus": 0}, 0, False),
        (HERE, {"gpus": 2}, 2, True),
        (HERE, {"engine": "vllm"}, 1, True),
        (HERE, {"engine": "vllm", "gpus": 0}, 0, True),
        (LARGE, {}, 4, False),
        (LARGE, {"gpus": 0}, 0, True),
        (LARGE, {"engine": "sglang"}, 4, True),
        (LARGE, {"engine": "llamacpp"}, 4, True),
        (LARGE, {"weights": URL}, 0, True),
    ],
)
def test_a_canary_has_its_models_gpus_and_no_fewer_than_its_engine_says(
    model: Model, asked: dict[str, Any], gpus: int, otherwise: bool
) -> None:
    request = StartCanary("chat", **asked)
    assert wanted_row(request, model, Origin(), ENGINES).gpus == gpus
    assert runs_otherwise(request, model) is otherwise


@pytest.mark.parametrize(
    ("request_", "gpus"),
    [(AddModel("x", HUB), 0), (AddModel("x", HUB, engine="vllm"), 1), (AddModel("x", HUB, engine="vllm", gpus=2), 2)],
)
def test_a_model_that_is_added_has_its_engines_gpus_unless_it_says(request_: AddModel, gpus: int) -> None:
    assert new_row(request_, Origin(), ENGINES).gpus == gpus


@pytest.mark.parametrize(
    ("request_", "model", "says"),
    [
        (AddModel("x", WeightsChoice(repo="a/b"), engine="external"), None, "serves nothing by itself: where is x"),
        (AddModel("x", URL, engine="vllm"), None, "vllm serves weights that are here"),
        (AddModel("x", URL, engine="external", engine_args=("-x",)), None, "no --engine-arg can reach it"),
        (AddModel("x", URL, engine="external", gpus=1), None, "cannot be given GPUs"),
        (StartCanary("chat", weights=WeightsChoice(repo="a/b")), THERE, "serves nothing by itself"),
        (StartCanary("chat", engine="external"), HERE, "serves nothing by itself"),
        (StartCanary("chat", engine="vllm", weights=URL), THERE, "vllm serves weights that are here"),
        (StartCanary("chat", engine="warp"), HERE, "there is no engine warp"),
    ],
)
def test_what_does_not_go_together_is_refused(request_: AddModel | StartCanary, model: Model | None, says: str) -> None:
    with pytest.raises(LlmgwError, match=says):
        check_engine(request_, model, ENGINES)


@pytest.mark.parametrize(
    ("origin", "found"),
    [
        (Origin(files=("m-Q8_0.gguf",)), WeightsFormat.GGUF),
        (Origin(files=("a/m-00001-of-00002.gguf", "a/m-00002-of-00002.gguf")), WeightsFormat.GGUF),
        (Origin(files=("config.json", "model.safetensors")), WeightsFormat.FOLDER),
        (Origin(files=("config.json", "pytorch_model.bin")), WeightsFormat.FOLDER),
        (Origin(files=("weights.of-its-own",)), WeightsFormat.ANY),
        (Origin(path="/w"), WeightsFormat.ANY),
        (Origin(urls=("http://a",)), WeightsFormat.NONE),
    ],
)
def test_the_format_is_told_by_the_files(origin: Origin, found: WeightsFormat) -> None:
    assert format_of(origin) is found
    check_fits("toy", ENGINES, origin)
    fitting = {name for name, engine in ENGINES.items() if engine.weights in (found, WeightsFormat.ANY)}
    for name in ENGINES:
        if found is WeightsFormat.ANY or name in fitting:
            check_fits(name, ENGINES, origin)
        else:
            with pytest.raises(LlmgwError, match=f"{name} serves "):
                check_fits(name, ENGINES, origin)
