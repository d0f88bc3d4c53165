"""Room for what is to come: refused before the first byte, with the numbers, and given once."""

import os

import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile, Snapshot
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.weights.fetch import fetch
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.space import Space
from tests.support.local_hub import LocalHub

KIB = 1 << 10
REPO = "org/model"
COMING, OTHER = RepoFile("m.gguf", 30 * KIB, sha256="a" * 64), RepoFile("n.gguf", 20 * KIB, sha256="c" * 64)


@pytest.fixture
def space(library: Library) -> Space:
    library.make()
    return Space(library)


@pytest.fixture
def old(remote: LocalHub, hub: Hub, library: Library) -> Snapshot:
    remote.commit(REPO, {"m-Q4_K_M.gguf": os.urandom(32 * KIB)})
    snapshot = hub.snapshot(REPO)
    fetch(hub, snapshot, snapshot.files, library)
    return snapshot


def disk_has(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    monkeypatch.setattr(Library, "free_bytes", lambda self: free_bytes)


def test_too_little_space_is_refused_with_numbers(
    space: Space, library: Library, old: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_has(monkeypatch, 40 * KIB)
    with space.reserved("add-1", [COMING], 10 * KIB):
        pass
    with space.reserved("add-1", old.files, 1 << 40):
        pass  # nothing to fetch needs no room
    with pytest.raises(LlmgwError) as error, space.reserved("add-1", [COMING], 20 * KIB, keep=set()):
        pass
    assert (error.value.code, error.value.status) == ("no_space", ExitStatus.REFUSED)
    assert error.value.message == (
        f"the weights need 30.0 KiB more and 20.0 KiB must stay free (weights.min_free), but {library.layout.root}"
        " has 40.0 KiB free"
    )
    assert error.value.hint == (
        "`llmgw ctl weights prune` would give 32.0 KiB, enough; make room, or set weights.dir to a larger disk"
    )
    with pytest.raises(LlmgwError) as kept, space.reserved("add-1", [COMING], 20 * KIB, keep={(old.repo, old.sha)}):
        pass
    assert kept.value.hint.startswith("`llmgw ctl weights prune` would give 0 bytes, not enough; ")


def test_what_is_wanted_is_not_counted_as_what_clean_up_gives(
    space: Space, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, size_bytes in ((COMING, 8 * KIB), (OTHER, 4 * KIB)):
        library.layout.partial_of(file).write_bytes(os.urandom(size_bytes))
    disk_has(monkeypatch, 16 * KIB)
    with (
        space.reserved("add-1", [OTHER], 0),
        pytest.raises(LlmgwError) as error,
        space.reserved("add-2", [COMING], KIB, keep=set()),
    ):
        pass
    assert "need 22.0 KiB more" in error.value.message
    assert error.value.hint.startswith("`llmgw ctl weights prune` would give 0 bytes, not enough; ")


def test_room_that_another_fetch_still_needs_is_not_given_again(
    space: Space, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_has(monkeypatch, 60 * KIB)
    with space.reserved("update-1-1", [COMING], 0):
        with space.reserved("add-1-2", [OTHER], 10 * KIB):
            pass
        with pytest.raises(LlmgwError) as error, space.reserved("add-1-2", [OTHER], 11 * KIB):
            pass
        assert error.value.message == (
            "the weights need 20.0 KiB more, update-1-1 still needs 30.0 KiB and 11.0 KiB must stay free"
            f" (weights.min_free), but {library.layout.root} has 60.0 KiB free"
        )
        assert error.value.hint.startswith("wait for update-1-1 (`llmgw ctl jobs list`), make room")
        library.layout.partial_of(COMING).write_bytes(bytes(10 * KIB))  # what it has written is no longer to come
        with space.reserved("add-1-2", [OTHER], 20 * KIB):
            pass
    with space.reserved("add-1-2", [OTHER], 40 * KIB):
        pass


def test_a_content_that_several_fetches_want_takes_its_room_once(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_has(monkeypatch, 50 * KIB)
    with (
        space.reserved("add-1", [COMING], 0),
        space.reserved("add-2", [COMING, OTHER], 0),
        space.reserved("add-3", [OTHER], 0),
    ):
        pass


def test_a_fetch_that_ends_in_any_way_or_was_refused_holds_no_room(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_has(monkeypatch, 30 * KIB)
    with pytest.raises(KeyError), space.reserved("add-1", [COMING], 0):
        raise KeyError
    with pytest.raises(LlmgwError), space.reserved("add-2", [COMING], 1):
        pass
    with space.reserved("add-3", [COMING], 0):
        pass
