"""The record of what a revision has: on disk for good, and never lost with what it tells of."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from llmgwd.domain.files import Snapshot
from llmgwd.weights.fetch import fetch
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.manifest import MANIFEST
from tests.support.local_hub import LocalHub

REPO = "org/model"


@pytest.fixture
def revision(remote: LocalHub, hub: Hub, library: Library) -> Snapshot:
    remote.commit(REPO, {"model.safetensors": os.urandom(4096), "config.json": b"{}", "1_Dense/config.json": b"{ }"})
    found = hub.snapshot(REPO)
    fetch(hub, found, found.files, library)
    remote.requests.clear()
    return found


def known(revision: Snapshot) -> dict[str, tuple[int, str]]:
    return {file.path: (file.size_bytes, file.content_id) for file in revision.files}


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.write_text('{"repo": "../x"'), id="garbled"),
        pytest.param(lambda path: path.write_bytes(b""), id="emptied-by-a-power-cut"),
        pytest.param(Path.unlink, id="gone"),
        pytest.param(
            lambda path: path.write_text(f'{{"repo": "a/b", "sha": "{"0" * 40}", "files": []}}'),
            id="of-another-revision",
        ),
    ],
)
def test_a_damaged_manifest_is_said_and_made_anew_from_the_files_on_disk(
    remote: LocalHub,
    hub: Hub,
    library: Library,
    revision: Snapshot,
    damage: Callable[[Path], object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = library.folder(REPO, revision.sha)
    damage(folder / MANIFEST)
    with caplog.at_level(logging.WARNING):
        (found,) = library.revisions()
    assert known(found) == known(revision)
    assert f"manifest damaged, made anew from the files on disk folder={folder} files=3" in caplog.text
    library.verify(REPO, revision.sha, revision.files, full=True)
    fetch(hub, revision, revision.files, library)
    assert remote.requests.matching() == []
    caplog.clear()
    assert library.recorded(REPO, revision.sha) == found
    assert caplog.text == ""


def test_what_is_none_of_the_verified_contents_is_not_taken_for_one(
    hub: Hub, library: Library, revision: Snapshot
) -> None:
    folder = library.folder(REPO, revision.sha)
    (folder / MANIFEST).unlink()
    (folder / "config.json").unlink()
    (folder / "config.json").write_text("{}")
    there = library.recorded(REPO, revision.sha)
    assert there is not None
    assert sorted(known(there)) == ["1_Dense/config.json", "model.safetensors"]
    fetch(hub, revision, revision.files, library)
    library.verify(REPO, revision.sha, revision.files, full=True)


def test_another_fetch_of_the_revision_leaves_what_is_there_though_the_manifest_is_damaged(
    remote: LocalHub, hub: Hub, library: Library
) -> None:
    remote.commit(REPO, {"m-Q8_0.gguf": b"a", "m-Q4_0.gguf": b"b"})
    found = hub.snapshot(REPO)
    first, second = found.files
    folder = fetch(hub, found, [first], library)
    (folder / MANIFEST).unlink()
    fetch(hub, found, [second], library)
    library.verify(REPO, found.sha, found.files)


def test_clean_up_removes_one_with_a_damaged_manifest_like_any_other(library: Library, revision: Snapshot) -> None:
    (library.folder(REPO, revision.sha) / MANIFEST).unlink()
    assert library.prune({(REPO, revision.sha)}) == []
    (removed,) = library.prune(set())
    assert removed.sha == revision.sha
    assert removed.freed_bytes > 4096


def test_manifest_and_names_are_on_disk_before_the_revision_counts_as_there(
    remote: LocalHub, hub: Hub, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.commit(REPO, {"model.safetensors": b"w", "config.json": b"{}", "1_Dense/config.json": b"{ }"})
    found, synced, really = hub.snapshot(REPO), list[str](), os.fsync

    def sync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        really(handle)

    monkeypatch.setattr(os, "fsync", sync)
    folder = fetch(hub, found, found.files, library)
    staging = next(path for path in synced if path.endswith(f"{MANIFEST}.new")).rpartition("/")[0]
    assert synced[-4:] == [f"{staging}/{MANIFEST}.new", staging, f"{staging}/1_Dense", str(folder.parent)]
