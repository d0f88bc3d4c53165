"""A disk that takes no more, at any point of a fetch: nothing half-written is believed, and nothing is left behind."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import Snapshot
from llmgwd.weights import fetch as fetch_module
from llmgwd.weights.fetch import fetch
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.locks import locked_file
from llmgwd.weights.partial import Partial
from llmgwd.weights.reclaim import give_back
from llmgwd.weights.staging import staged
from tests.support.local_hub import Fault, LocalHub
from tests.support.small_disk import small_disk

MIB = 1 << 20
REPO = "org/model"
SHARED, CHANGED = "m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf"


def files_in(folder: Path) -> dict[str, bytes]:
    """By their paths below the folder, with what is in them."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_disk_that_is_really_full_gets_back_what_the_fetch_took(remote: LocalHub, hub: Hub, tmp_path: Path) -> None:
    remote.commit(REPO, {f"m-Q4_K_M-0000{number}-of-00003.gguf": os.urandom(2 * MIB) for number in (1, 2, 3)})
    snapshot = hub.snapshot(REPO)
    with small_disk(tmp_path / "disk", 4 * MIB) as disk:
        library = Library(disk / "weights")
        library.make()
        free_bytes = library.free_bytes()
        with pytest.raises(LlmgwError) as error:
            fetch(hub, snapshot, snapshot.files, library)
        assert error.value.code == "disk_full"
        assert str(library.layout.root) in error.value.message
        assert library.free_bytes() == free_bytes
    assert len(remote.requests.matching("/cdn/*")) == 3  # no hot retries


class Disk:
    """Takes so many writes, renames, links and folders below root, and no more. A file is then written to a half."""

    def __init__(self, root: Path, takes: int) -> None:
        self.root = root
        self.left = takes
        self._lock = threading.Lock()

    def is_full(self) -> bool:
        with self._lock:
            self.left -= 1
            return self.left < 0

    def limits(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def limited(*args: Any, **kwargs: Any) -> Any:
            # By path, or else an open file, which only the library syncs.
            if (isinstance(args[0], int) or self.root in Path(args[0]).parents) and self.is_full():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return act(*args, **kwargs)

        return limited


@contextmanager
def disk_that_takes(library: Library, times: int) -> Iterator[None]:
    disk = Disk(library.layout.root, times)
    append, write_bytes = Partial.append, Path.write_bytes

    def append_half(partial: Partial, chunk: bytes) -> None:
        if disk.is_full():
            append(partial, chunk[: len(chunk) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(partial, chunk)

    def write_half(path: Path, data: bytes) -> int:
        if disk.is_full():
            write_bytes(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_bytes(path, data)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("mkdir", "rename", "replace", "link", "fsync"):
            patch.setattr(os, name, disk.limits(getattr(os, name)))
        patch.setattr(Path, "touch", disk.limits(Path.touch))
        patch.setattr(Partial, "append", append_half)
        patch.setattr(Path, "write_bytes", write_half)
        yield


def update_of_one_shard(remote: LocalHub, hub: Hub, library: Library) -> Snapshot:
    remote.commit(REPO, {SHARED: b"shared" * 9, CHANGED: b"old" * 9})
    old = hub.snapshot(REPO)
    fetch(hub, old, old.files, library)
    remote.commit(REPO, {CHANGED: b"new" * 9, "sub/config.json": b"{}"})
    return hub.snapshot(REPO)


def another_quantisation(remote: LocalHub, hub: Hub, library: Library) -> Snapshot:
    remote.commit(REPO, {"m-Q4_K_M.gguf": b"four", "Q8/m-Q8_0.gguf": b"eight", "config.json": b"{}"})
    both = hub.snapshot(REPO)
    fetch(hub, both, [file for file in both.files if "Q4" in file.path or "config" in file.path], library)
    return both


@pytest.mark.parametrize("prepare", [update_of_one_shard, another_quantisation])
def test_wherever_the_disk_fills_up_nothing_is_left_behind_or_believed(
    remote: LocalHub, hub: Hub, library: Library, prepare: Callable[[LocalHub, Hub, Library], Snapshot]
) -> None:
    coming = prepare(remote, hub, library)
    before, there = files_in(library.layout.root), library.revisions()
    for times in range(100):
        try:
            with disk_that_takes(library, times):
                folder = fetch(hub, coming, coming.files, library)
            break
        except LlmgwError as error:
            assert error.code == "disk_full", times
        assert files_in(library.layout.root) == before, times
        assert library.revisions() == there, times
        for each in there:
            library.verify(each.repo, each.sha, each.files, full=True)
    assert times > 10
    library.verify(coming.repo, coming.sha, coming.files, full=True)
    assert folder == library.folder(coming.repo, coming.sha)


def test_a_thread_that_ends_after_the_fetch_gives_back_too(
    remote: LocalHub, hub: Hub, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file fills the disk while another waits for its answer, for longer than the fetch waits for its threads."""
    monkeypatch.setattr(fetch_module, "GRACE_S", 0.0)
    remote.commit(REPO, {"slow-Q4_K_M-00001-of-00002.gguf": b"slow" * 2, "slow-Q4_K_M-00002-of-00002.gguf": b"full"})
    snapshot = hub.snapshot(REPO)
    slow, full = snapshot.files
    library.make()
    library.layout.partial_of(slow).write_bytes(b"slow")
    remote.faults.add(Fault(f"/org/*{slow.path}", hang=True))
    append = Partial.append

    def append_to_all_but(partial: Partial, chunk: bytes) -> None:
        if partial._file == full:
            remote.requests.wait_for(f"/org/*{slow.path}")
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        append(partial, chunk)

    monkeypatch.setattr(Partial, "append", append_to_all_but)
    with pytest.raises(LlmgwError) as error:
        fetch(hub, snapshot, snapshot.files, library)
    assert error.value.code == "disk_full"
    assert library.layout.partial_of(slow).exists(), "its thread has it still"
    ended = [thread for thread in threading.enumerate() if thread.name == "weights"]
    remote.faults.clear()
    for thread in ended:
        thread.join(10)
    assert files_in(library.layout.root) == {}


def test_another_trouble_of_the_disk_keeps_what_there_is(
    remote: LocalHub, hub: Hub, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.commit(REPO, {CHANGED: b"weights"})
    snapshot = hub.snapshot(REPO)
    library.make()
    partial = library.layout.partial_of(snapshot.files[0])
    partial.write_bytes(b"wei")

    def append(partial: Partial, chunk: bytes) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Partial, "append", append)
    with pytest.raises(LlmgwError) as error:
        fetch(hub, snapshot, snapshot.files, library)
    assert error.value.code == "weights_folder"
    assert error.value.message == f"cannot write weights to {library.layout.root}: Input/output error"
    assert partial.read_bytes() == b"wei"


def test_what_another_fetch_wants_or_has_open_is_not_given_back(hub: Hub, remote: LocalHub, library: Library) -> None:
    remote.commit(REPO, {CHANGED: b"weights"})
    snapshot = hub.snapshot(REPO)
    (file,) = snapshot.files
    library.make()
    content, partial = library.layout.content_of(file), library.layout.partial_of(file)
    content.write_bytes(b"weights")
    partial.write_bytes(b"wei")
    with staged(library.layout, snapshot):
        give_back(library.layout, snapshot.files)
        assert content.exists() and partial.exists()
    with locked_file(partial, threading.Event()):
        give_back(library.layout, snapshot.files)
        assert not content.exists() and partial.exists()
    give_back(library.layout, snapshot.files)
    assert not partial.exists()
