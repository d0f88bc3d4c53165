"""What is declared in the configuration: what of it goes together."""

from pathlib import Path
from typing import Any

import pytest

from llmgwd.config import parse_settings
from llmgwd.declare import declared_models, engines_of
from llmgwd.domain.errors import LlmgwError


def declared(**fields: Any) -> Any:
    settings = parse_settings({"models": [{"name": "chat", **fields}]})
    (model,) = declared_models(settings, engines_of(settings), [])
    return model


@pytest.mark.parametrize(
    "also", [{"path": "/w.gguf"}, {"engine_args": ["-x"]}, {"gpus": 1}], ids=lambda also: next(iter(also))
)
def test_what_others_serve_is_declared_by_its_urls_alone(also: dict[str, Any]) -> None:
    with pytest.raises(LlmgwError, match="expected urls, and no path, engine_args or gpus"):
        declared(**{"engine": "external", "urls": ["http://a"], **also})


def test_what_others_serve_has_a_replica_for_each_url_and_no_gpus() -> None:
    model = declared(engine="external", urls=["http://a", "http://b"], gpus=0)
    assert (model.replicas, model.gpus) == (2, 0)


@pytest.mark.parametrize(("said", "gpus"), [({}, 1), ({"gpus": 0}, 0), ({"gpus": 2}, 2)])
def test_a_declared_model_has_its_engines_gpus_unless_it_says(said: dict[str, Any], gpus: int, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert declared(engine="vllm", path=str(tmp_path), **said).gpus == gpus
