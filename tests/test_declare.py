"""Declared models whose files cannot be looked at, and key files: refused in words, never with a traceback."""

import os
from pathlib import Path

import pytest

from llmgwd.config import DeclaredModel, Settings
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
