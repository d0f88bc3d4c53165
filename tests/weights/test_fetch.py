"""Fetching a revision: whole, verified, resumed, each content once."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile, Snapshot
from llmgwd.weights.download import Download
from llmgwd.weights.fetch import fetch
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.locks import try_lock
from llmgwd.weights.progress import CancelFlag, Cancelled
from tests.support.local_hub import Fault, LocalHub

MIB = 1 << 20
REPO = "org/model"
SECONDS_TO_STOP = 5.0


def random_shards(count: int, size_bytes: int = MIB) -> dict[str, bytes]:
    return {f"m-Q4_K_M-{n:05}-of-{count:05}.gguf": os.urandom(size_bytes) for n in range(1, count + 1)}


def sent_bytes(remote: LocalHub) -> int:
    return sum(request.body_bytes for request in remote.requests.matching("/cdn/*", "GET"))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def waits_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise TimeoutError


def only_partial(library: Library) -> Path:
    (partial,) = library.layout.partial.iterdir()
    return partial


def has_partial_of(library: Library, size_bytes: int) -> Callable[[], bool]:
    folder = library.layout.partial
    return lambda: folder.exists() and any(path.stat().st_size >= size_bytes for path in folder.iterdir())


def test_folder_holds_the_files_whole_and_each_content_once(remote: LocalHub, hub: Hub, library: Library) -> None:
    shards = random_shards(3)
    small = {"config.json": b'{"a": 1}', "1_Pooling/config.json": b'{"a": 1}', "an #odd % näme?.json": b""}
    remote.commit(REPO, {**shards, **small})
    snapshot, seen = hub.snapshot(REPO), list[tuple[int, int]]()

    folder = fetch(hub, snapshot, snapshot.files, library, progress=lambda done, total: seen.append((done, total)))

    assert folder == library.folder(REPO, snapshot.sha)
    for path, content in {**shards, **small}.items():
        assert (folder / path).read_bytes() == content
        assert not (folder / path).stat().st_mode & 0o222
    assert (folder / "config.json").samefile(folder / "1_Pooling/config.json")
    assert library.recorded(REPO, snapshot.sha) == snapshot
    total = 3 * MIB + len(b'{"a": 1}')
    assert seen[-1] == (total, total)
    assert names_in(library.layout.partial) == names_in(library.layout.staging) == []


def test_update_of_one_shard_in_four_fetches_that_one(remote: LocalHub, hub: Hub, library: Library) -> None:
    shards = random_shards(4)
    remote.commit(REPO, shards)
    old = hub.snapshot(REPO)
    before = fetch(hub, old, old.files, library)
    changed = "m-Q4_K_M-00002-of-00004.gguf"
    remote.commit(REPO, {changed: os.urandom(MIB)})
    remote.requests.clear()

    new, seen = hub.snapshot(REPO), list[tuple[int, int]]()
    assert library.needed_bytes(new.files) == MIB
    after = fetch(hub, new, new.files, library, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (MIB, MIB)

    (only,) = remote.requests.matching("/cdn/*")
    assert only.path.endswith(changed)
    assert [path for path in shards if not (before / path).samefile(after / path)] == [changed]


def test_what_is_there_is_not_asked_for_again(remote: LocalHub, hub: Hub, library: Library) -> None:
    remote.commit(REPO, random_shards(2))
    snapshot = hub.snapshot(REPO)
    folder = fetch(hub, snapshot, snapshot.files, library)
    remote.requests.clear()
    assert fetch(hub, snapshot, snapshot.files, library) == folder
    assert remote.requests.matching() == []


def test_other_files_of_the_same_revision_join_those_that_are_there(
    remote: LocalHub, hub: Hub, library: Library
) -> None:
    remote.commit(REPO, {"m-Q4_K_M.gguf": b"four", "m-Q8_0.gguf": b"eight"})
    snapshot = hub.snapshot(REPO)
    four, eight = ([file for file in snapshot.files if name in file.path] for name in ("Q4", "Q8"))
    assert fetch(hub, snapshot, four, library) == fetch(hub, snapshot, eight, library)
    assert library.has(REPO, snapshot.sha, four)
    assert library.recorded(REPO, snapshot.sha) == snapshot


@pytest.mark.parametrize("path", ["m-Q4_K_M-00001-of-00001.gguf", "config.json"])
def test_flipped_byte_is_fetched_once_more(remote: LocalHub, hub: Hub, library: Library, path: str) -> None:
    content = {**random_shards(1), "config.json": b'{"vocab_size": 32000}'}
    remote.commit(REPO, content)
    remote.faults.add(Fault(f"*{path}", method="GET", flip_byte_at=7))
    snapshot, notices = hub.snapshot(REPO), list[str]()
    folder = fetch(hub, snapshot, snapshot.files, library, notice=notices.append)
    assert (folder / path).read_bytes() == content[path]
    assert len(notices) == 1
    assert f"{path} arrived damaged" in notices[0]


def test_content_that_stays_wrong_is_an_error_and_never_appears(remote: LocalHub, hub: Hub, library: Library) -> None:
    remote.commit(REPO, random_shards(1))
    remote.faults.add(Fault("/cdn/*", flip_byte_at=MIB - 1, times=None))
    snapshot = hub.snapshot(REPO)
    with pytest.raises(LlmgwError) as error:
        fetch(hub, snapshot, snapshot.files, library)
    (file,) = snapshot.files
    assert error.value.code == "checksum_mismatch"
    assert error.value.message.startswith(f"{file.path} has the wrong content: expected sha256 {file.sha256}, got ")
    assert len(remote.requests.matching("/cdn/*", "GET")) == 2
    assert not library.folder(REPO, snapshot.sha).exists()
    assert names_in(library.layout.partial) == names_in(library.layout.content) == []


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_lost_connection_goes_on_where_it_was(remote: LocalHub, hub: Hub, library: Library, reset: bool) -> None:
    shards = random_shards(1, 4 * MIB)
    remote.commit(REPO, shards)
    for after in (0, 1, 2):
        remote.faults.add(Fault("/cdn/*", drop_after=MIB, reset=reset, after=after, times=1))
    snapshot = hub.snapshot(REPO)
    folder = fetch(hub, snapshot, snapshot.files, library)
    ((path, content),) = shards.items()
    assert (folder / path).read_bytes() == content
    assert all(request.range for request in remote.requests.matching("/cdn/*")[1:])


def test_damage_in_what_a_killed_fetch_left_is_found(remote: LocalHub, hub: Hub, library: Library) -> None:
    shards = random_shards(1)
    remote.commit(REPO, shards)
    snapshot = hub.snapshot(REPO)
    library.make()
    library.layout.partial_of(snapshot.files[0]).write_bytes(os.urandom(MIB // 2))
    folder = fetch(hub, snapshot, snapshot.files, library)
    ((path, content),) = shards.items()
    assert (folder / path).read_bytes() == content


FETCH_IN_A_PROCESS = """
import sys
from pathlib import Path
from llmgwd.weights.fetch import fetch
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
hub = Hub(sys.argv[1])
snapshot = hub.snapshot(sys.argv[2])
fetch(hub, snapshot, snapshot.files, Library(Path(sys.argv[3])))
"""


def test_killed_at_90_percent_refetches_under_5_percent(remote: LocalHub, hub: Hub, library: Library) -> None:
    size = 200 * MIB
    ((path, content),) = random_shards(1, size).items()
    remote.commit(REPO, {path: content})
    remote.faults.add(Fault("/cdn/*", hang_after=size * 9 // 10))
    argv = [sys.executable, "-c", FETCH_IN_A_PROCESS, remote.endpoint, REPO, str(library.layout.root)]
    process = subprocess.Popen(argv)
    try:
        waits_until(has_partial_of(library, size * 9 // 10), timeout_s=60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    remote.faults.clear()
    remote.requests.clear()

    snapshot = hub.snapshot(REPO)
    folder = fetch(hub, snapshot, snapshot.files, library)

    assert (folder / path).read_bytes() == content
    assert sent_bytes(remote) - size // 10 < size // 20
    assert library.prune({(REPO, snapshot.sha)}) == []
    assert names_in(library.layout.staging) == []


def test_cancelled_fetch_leaves_only_the_partial(remote: LocalHub, hub: Hub, library: Library) -> None:
    ((path, content),) = random_shards(1, 2 * MIB).items()
    remote.commit(REPO, {path: content})
    remote.faults.add(Fault("/cdn/*", hang_after=MIB))
    snapshot, cancelled = hub.snapshot(REPO), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        fetching = threads.submit(fetch, hub, snapshot, snapshot.files, library, cancelled=cancelled)
        waits_until(has_partial_of(library, MIB))
        cancelled.set()
        with pytest.raises(Cancelled):
            fetching.result(SECONDS_TO_STOP)
    assert only_partial(library).stat().st_size == MIB
    with only_partial(library).open("rb") as partial:
        assert try_lock(partial.fileno()), "the thread that fetched has ended and let go of its file"
    assert names_in(library.layout.staging) == names_in(library.layout.content) == []
    assert not library.folder(REPO, snapshot.sha).exists()

    remote.requests.clear()
    assert (fetch(hub, snapshot, snapshot.files, library) / path).read_bytes() == content
    assert sent_bytes(remote) == MIB


def test_cancel_also_ends_a_wait_that_the_hub_asked_for(remote: LocalHub, hub: Hub, library: Library) -> None:
    remote.commit(REPO, random_shards(1))
    snapshot, cancelled = hub.snapshot(REPO), threading.Event()
    remote.faults.add(Fault.rate_limited("/cdn/*", seconds=200))
    with ThreadPoolExecutor(1) as threads:
        fetching = threads.submit(
            fetch, hub, snapshot, snapshot.files, library, cancelled=cancelled, notice=lambda line: cancelled.set()
        )
        with pytest.raises(Cancelled):
            fetching.result(SECONDS_TO_STOP)


def test_two_fetches_of_a_revision_at_once_fetch_each_content_once(
    remote: LocalHub, hub: Hub, library: Library
) -> None:
    shards = random_shards(2)
    remote.commit(REPO, shards)
    remote.faults.add(Fault("/cdn/*", bytes_per_s=4 * MIB, times=None))
    snapshot = hub.snapshot(REPO)
    with ThreadPoolExecutor(2) as threads:
        folders = [threads.submit(fetch, hub, snapshot, snapshot.files, library) for _ in range(2)]
        first, second = (folder.result(20) for folder in folders)
    assert first == second
    assert sent_bytes(remote) == 2 * MIB
    assert {path: (first / path).read_bytes() for path in shards} == shards
    assert names_in(library.layout.staging) == []


def test_nothing_to_fetch_is_a_mistake_of_the_caller(hub: Hub, library: Library) -> None:
    with pytest.raises(ValueError, match="nothing to fetch"):
        fetch(hub, Snapshot(REPO, "0" * 40, ()), (), library)


def test_content_that_somebody_removes_while_it_is_fetched_is_missed(
    remote: LocalHub, hub: Hub, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.commit(REPO, random_shards(1))
    snapshot = hub.snapshot(REPO)
    (file,) = snapshot.files
    run = Download.run

    def run_and_lose(download: Download, cancelled: CancelFlag) -> None:
        run(download, cancelled)
        library.layout.content_of(file).unlink()

    monkeypatch.setattr(Download, "run", run_and_lose)
    with pytest.raises(LlmgwError, match=f"{file.path} vanished from {library.layout.content}"):
        fetch(hub, snapshot, snapshot.files, library)
    assert library.revisions() == []


def test_file_that_would_hide_the_manifest_is_refused(hub: Hub, library: Library) -> None:
    files = (RepoFile(".llmgw.json", 1, blob_id="0" * 40),)
    with pytest.raises(LlmgwError, match=r"\.llmgw\.json"):
        fetch(hub, Snapshot(REPO, "0" * 40, files), files, library)
