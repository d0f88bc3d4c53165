"""A hub on this machine, a client that waits for nobody, and an empty library."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.patience import Patience
from tests.support.local_hub import LocalHub

IMPATIENT = Patience(attempts=4, first_wait_s=0.0)


@pytest.fixture(autouse=True)
def no_token_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-login"))


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[LocalHub]:
    with LocalHub(tmp_path / "hub") as hub:
        yield hub


@pytest.fixture
def hub(remote: LocalHub) -> Hub:
    return Hub(remote.endpoint, patience=IMPATIENT)


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "weights")
