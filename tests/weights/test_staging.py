"""What the weights folder must be able to do is found out before a byte is fetched."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.weights.fetch import fetch
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from tests.support.local_hub import LocalHub
from tests.support.small_disk import small_disk

MIB = 1 << 20
REPO = "org/model"


@pytest.fixture(params=[".content", ".partial", ".staging", "org--model"])
def other_disk(request: pytest.FixtureRequest, library: Library) -> Iterator[Path]:
    """A part of the weights folder that is another file system."""
    library.make()
    folder = library.layout.root / request.param
    if folder.exists():
        folder.rmdir()
    with small_disk(folder, MIB) as disk:
        yield disk


@pytest.mark.usefixtures("other_disk")
def test_parts_on_other_file_systems_are_refused_before_any_download(
    remote: LocalHub, hub: Hub, library: Library
) -> None:
    refused_before_any_download(remote, hub, library, "Invalid cross-device link")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_refused_before_any_download(
    remote: LocalHub, hub: Hub, library: Library, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def link(source: object, target: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    refused_before_any_download(remote, hub, library, os.strerror(number))


def refused_before_any_download(remote: LocalHub, hub: Hub, library: Library, why: str) -> None:
    remote.commit(REPO, {"m-Q4_K_M.gguf": b"weights"})
    snapshot = hub.snapshot(REPO)
    remote.requests.clear()
    with pytest.raises(LlmgwError) as error:
        fetch(hub, snapshot, snapshot.files, library)
    root = library.layout.root
    assert error.value.code == "weights_no_links"
    assert error.value.message == f"{root} cannot have the same file in two of its folders: {why}"
    assert "weights.dir" in error.value.hint
    assert remote.requests.matching() == []
    assert [path for path in root.rglob("*") if path.is_file()] == []
