"""Declared models: what of them goes together, and files that cannot be looked at, which are refused in words."""

import os
from pathlib import Path
from typing import Any

import pytest

from llmgwd.config import DeclaredModel, Settings, parse_settings
from llmgwd.dataplane.dataplane import read_keys
from llmgwd.declare import declared_models, engines_of
from llmgwd.domain.errors import LlmgwError

UNREACHABLE = ["x" * 300, "y/" * 3000]


@pytest.mark.parametrize("name", UNREACHABLE, ids=["a long name", "a long path"])
def test_a_path_that_no_file_can_have_is_a_bad_configuration(name: str, tmp_path: Path) -> None:
    settings = Settings(models=(DeclaredModel(name="base", path=tmp_path / name),))
    with pytest.raises(LlmgwError, match=r"models\[0\]\.path is .* cannot be looked at: File name too long") as raised:
        declared_models(settings, engines_of(settings), [])
    assert raised.value.code == "bad_config"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look everywhere")
def test_a_folder_that_may_not_be_entered_is_a_bad_configuration(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    settings = Settings(models=(DeclaredModel(name="base", path=closed / "a.gguf"),))
    with pytest.raises(LlmgwError, match=r"cannot be looked at: Permission denied"):
        declared_models(settings, engines_of(settings), [])


@pytest.mark.parametrize("name", [*UNREACHABLE, "a\0b", "a\ud800"], ids=["long name", "long path", "NUL", "surrogate"])
def test_a_key_file_that_no_file_can_be_is_refused_in_words(name: str, tmp_path: Path) -> None:
    with pytest.raises(LlmgwError, match=r"gateway\.api_keys_file .* cannot be read"):
        read_keys(tmp_path / name)


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
