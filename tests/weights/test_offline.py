"""With HF_HUB_OFFLINE, what is on disk is all there is."""

import os

import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import Snapshot
from llmgwd.weights.fetch import fetch
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.offline import find_on_disk
from tests.support.local_hub import LocalHub

REPO = "org/model"


@pytest.fixture
def two(remote: LocalHub, hub: Hub, library: Library) -> tuple[Snapshot, Snapshot]:
    found = []
    for number, content in enumerate((b"old", b"new")):
        remote.commit(REPO, {"m-Q8_0.gguf": content})
        snapshot = hub.snapshot(REPO)
        # Looked at or copied since: what counts is when it came.
        os.utime(fetch(hub, snapshot, snapshot.files, library), (1e9 - number, 1e9 - number))
        found.append(snapshot)
    return found[0], found[1]


def test_the_newest_on_disk_or_the_one_that_is_named(library: Library, two: tuple[Snapshot, Snapshot]) -> None:
    old, new = two
    assert find_on_disk(library, REPO, None) == new
    assert find_on_disk(library, REPO, old.sha) == old
    assert find_on_disk(library, REPO, old.sha[:7]) == old


@pytest.mark.parametrize("revision", ["main", "abcdef0", "0" * 40])
def test_what_is_not_on_disk_is_refused_with_what_is(
    library: Library, two: tuple[Snapshot, Snapshot], revision: str
) -> None:
    old, new = two
    with pytest.raises(LlmgwError) as error:
        find_on_disk(library, REPO, revision)
    assert error.value.message == f"HF_HUB_OFFLINE is set and {REPO} at {revision} is not on disk"
    assert error.value.hint == (
        f"name a revision that is (on disk: {new.sha[:7]}, {old.sha[:7]}), or start llmgwd without HF_HUB_OFFLINE"
    )
    with pytest.raises(LlmgwError, match="a/b is not on disk") as nothing:
        find_on_disk(library, "a/b", None)
    assert "on disk: none" in nothing.value.hint
