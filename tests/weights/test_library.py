"""What is on disk: verified, measured, cleaned up."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile, Snapshot
from llmgwd.weights.fetch import fetch
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library, Removed
from llmgwd.weights.manifest import MANIFEST
from llmgwd.weights.progress import Cancelled
from tests.support.local_hub import Fault, LocalHub

KIB = 1 << 10
REPO = "org/model"
SHARED, ONLY = "m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf"


@pytest.fixture
def old(remote: LocalHub, hub: Hub, library: Library) -> Snapshot:
    remote.commit(REPO, {SHARED: os.urandom(64 * KIB), ONLY: os.urandom(32 * KIB)})
    snapshot = hub.snapshot(REPO)
    fetch(hub, snapshot, snapshot.files, library)
    return snapshot


@pytest.fixture
def new(remote: LocalHub, hub: Hub, library: Library, old: Snapshot) -> Snapshot:
    remote.commit(REPO, {ONLY: os.urandom(32 * KIB)})
    snapshot = hub.snapshot(REPO)
    fetch(hub, snapshot, snapshot.files, library)
    return snapshot


def key(snapshot: Snapshot) -> tuple[str, str]:
    return snapshot.repo, snapshot.sha


def damage(path: Path) -> None:
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(b"\xff\x00\xff\x00")


def test_verified_says_what_was_done(library: Library, old: Snapshot) -> None:
    assert library.verify(*key(old), old.files) == "2 files, 96.0 KiB, hashed when fetched, sizes checked"
    seen: list[tuple[int, int]] = []
    said = library.verify(*key(old), old.files, full=True, progress=lambda done, total: seen.append((done, total)))
    assert said == "2 files, 96.0 KiB, hashed again"
    assert seen == [(64 * KIB, 96 * KIB), (96 * KIB, 96 * KIB), (96 * KIB, 96 * KIB)]


def test_damage_at_rest_is_found_by_hashing_again_and_repaired_by_a_fetch(
    remote: LocalHub, hub: Hub, library: Library, old: Snapshot
) -> None:
    folder = library.folder(*key(old))
    good = (folder / ONLY).read_bytes()
    damage(folder / ONLY)
    with pytest.raises(LlmgwError, match=f"{ONLY} has the wrong content: expected sha256") as error:
        library.verify(*key(old), old.files, full=True)
    assert error.value.code == "checksum_mismatch"
    assert not library.has(*key(old), old.files)
    remote.requests.clear()
    fetch(hub, old, old.files, library)
    assert (folder / ONLY).read_bytes() == good
    assert len(remote.requests.matching("/cdn/*")) == 1


@pytest.mark.parametrize(
    ("hurt", "message"),
    [
        pytest.param(Path.unlink, f"{ONLY} cannot be read (No such file or directory)", id="gone"),
        pytest.param(lambda path: os.truncate(path, 5), f"{ONLY} has 5 bytes instead of 32768", id="cut"),
    ],
)
def test_folder_that_is_not_whole_is_named_and_repaired(
    hub: Hub, library: Library, old: Snapshot, hurt: object, message: str
) -> None:
    assert callable(hurt)
    path = library.folder(*key(old)) / ONLY
    path.chmod(0o644)
    hurt(path)
    with pytest.raises(LlmgwError) as error:
        library.verify(*key(old), old.files)
    assert (error.value.code, error.value.message) == (
        "weights_incomplete",
        f"org/model at {old.sha[:12]} is not whole: {message}",
    )
    fetch(hub, old, old.files, library)
    library.verify(*key(old), old.files, full=True)


def test_revision_that_is_not_there(library: Library) -> None:
    assert library.recorded(REPO, "0" * 40) is None
    assert not library.has(REPO, "0" * 40, [])
    assert library.revisions() == []
    with pytest.raises(LlmgwError, match="there is no such revision on disk"):
        library.verify(REPO, "0" * 40, [])


def test_verify_can_be_cancelled(library: Library, old: Snapshot) -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled):
        library.verify(*key(old), old.files, full=True, cancelled=cancelled)


def test_clean_up_removes_only_what_no_kept_revision_shares(library: Library, old: Snapshot, new: Snapshot) -> None:
    expected = [Removed(REPO, old.sha, 32 * KIB)]
    assert library.prune({key(new)}, dry_run=True) == expected
    assert library.has(*key(old), old.files)

    assert library.prune({key(new)}) == expected
    assert not library.folder(*key(old)).exists()
    assert library.revisions() == [new]
    library.verify(*key(new), new.files, full=True)
    assert {path.name for path in library.layout.content.iterdir()} == {file.content_id for file in new.files}
    assert library.prune({key(new)}) == []


def test_clean_up_of_all_gives_back_all(library: Library, old: Snapshot, new: Snapshot) -> None:
    assert sum(removed.freed_bytes for removed in library.prune(set())) == 128 * KIB
    assert [path for path in library.layout.root.rglob("*") if path.is_file()] == []


def test_clean_up_leaves_a_running_fetch_alone(remote: LocalHub, hub: Hub, library: Library, old: Snapshot) -> None:
    remote.commit(REPO, {ONLY: os.urandom(32 * KIB)})
    coming = hub.snapshot(REPO)
    remote.faults.add(Fault("/cdn/*", hang_after=16 * KIB))
    with ThreadPoolExecutor(1) as threads:
        fetching = threads.submit(fetch, hub, coming, coming.files, library)
        remote.requests.wait_for(f"/cdn/*{ONLY}", count=2)
        library.prune(set())
        remote.faults.clear()
        fetching.result(10)
    library.verify(*key(coming), coming.files, full=True)
    shared = next(file for file in coming.files if file.path == SHARED)
    assert len(remote.requests.matching(f"/cdn/*{shared.path}")) == 1


def test_leftovers_go_only_when_asked_for(library: Library) -> None:
    library.make()
    (library.layout.partial / "sha256-00").write_bytes(b"x" * 8192)
    assert library.prune(set(), leftovers=False) == []
    assert library.prune(set()) == [Removed(None, None, 8192)]


def test_a_dry_run_removes_nothing(library: Library) -> None:
    library.make()
    abandoned = library.layout.staging / "org--model--killed"
    abandoned.mkdir()
    library.prune(set(), dry_run=True)
    assert abandoned.exists()
    library.prune(set())
    assert not abandoned.exists()


def test_space_counts_only_what_is_to_come(library: Library, old: Snapshot) -> None:
    coming = RepoFile("m.gguf", 10 * KIB, sha256="a" * 64)
    twin = RepoFile("copy.gguf", 10 * KIB, sha256="a" * 64)
    library.layout.partial_of(coming).write_bytes(b"x" * 4 * KIB)
    assert library.needed_bytes([*old.files, coming, twin]) == 6 * KIB


def test_newest_is_what_came_last_whatever_was_touched_or_joined_since(
    remote: LocalHub, hub: Hub, library: Library, old: Snapshot, new: Snapshot
) -> None:
    os.utime(library.folder(*key(new)), (1e8, 1e8))
    assert library.newest_first() == [new, old]
    sha = remote.commit("org/other", {"a-Q8_0.gguf": b"a", "a-Q4_0.gguf": b"b"})
    first, second = hub.snapshot("org/other", sha).files
    fetch(hub, Snapshot("org/other", sha, ()), [first], library)
    remote.commit("org/other", {"a-Q8_0.gguf": b"c"})
    newest = hub.snapshot("org/other")
    fetch(hub, newest, newest.files, library)
    fetch(hub, Snapshot("org/other", sha, ()), [second], library)
    assert [each.sha for each in library.newest_first()] == [newest.sha, sha, new.sha, old.sha]


def test_what_came_before_that_was_recorded_is_ordered_by_its_folder(
    library: Library, old: Snapshot, new: Snapshot
) -> None:
    for number, snapshot in enumerate((new, old)):
        folder = library.folder(*key(snapshot))
        written = msgspec.json.decode((folder / MANIFEST).read_bytes())
        del written["arrived"]
        (folder / MANIFEST).write_bytes(msgspec.json.encode(written))
        os.utime(folder, (1e9 + number, 1e9 + number))
    assert library.newest_first() == [old, new]


def test_free_space_is_known_before_the_folder_is_made(tmp_path: Path) -> None:
    assert Library(tmp_path / "not" / "there" / "yet").free_bytes() > 0
