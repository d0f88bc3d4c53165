"""Xet storage, through the client's own library, against a folder that it takes for a storage server."""

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from llmgwd.domain.files import Snapshot
from llmgwd.weights import xet
from llmgwd.weights.fetch import fetch
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.locks import try_lock
from llmgwd.weights.progress import Cancelled
from llmgwd.weights.token import TokenSource
from tests.support.hub_xet import HubXet
from tests.support.local_hub import Fault, LocalHub
from tests.weights.conftest import IMPATIENT

pytest.importorskip("hf_xet")

MIB = 1 << 20
REPO, FILE = "org/model", "m-Q4_K_M.gguf"
SECRET = "hf_aVerySecretToken"


@pytest.fixture
def content() -> bytes:
    return os.urandom(8 * MIB)


@pytest.fixture
def snapshot(remote: LocalHub, hub: Hub, content: bytes) -> Snapshot:
    remote.offer_xet()
    remote.commit(REPO, {FILE: content, "config.json": b"{}"})
    return hub.snapshot(REPO)


@contextmanager
def offsets_asked_for(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    asked: list[int] = []

    class Noted(xet.XetBody):
        def __init__(self, file: object, found: object, headers: object, offset: int) -> None:
            asked.append(offset)
            super().__init__(file, found, headers, offset)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(xet, "XetBody", Noted)
        yield asked


def test_files_come_from_xet_where_the_hub_offers_it(
    remote: LocalHub, hub: Hub, library: Library, snapshot: Snapshot, content: bytes
) -> None:
    seen: list[tuple[int, int]] = []
    folder = fetch(hub, snapshot, snapshot.files, library, progress=lambda done, total: seen.append((done, total)))
    assert (folder / FILE).read_bytes() == content
    assert seen[-1] == (8 * MIB + 2, 8 * MIB + 2)
    assert len(remote.requests.matching("/api/*/xet-read-token/*")) == 1
    assert remote.requests.matching("/cdn/*") == []


def test_a_repository_that_was_renamed_gives_its_files_from_xet_too(
    remote: LocalHub, hub: Hub, library: Library, snapshot: Snapshot, content: bytes
) -> None:
    sha = remote.commit("org/renamed", {FILE: content})
    moved = f"{remote.endpoint}/org/renamed/resolve/{sha}/{FILE}"
    remote.faults.add(Fault(f"/{REPO}/*{FILE}", status=307, headers={"Location": moved}, times=None))
    folder = fetch(hub, snapshot, snapshot.files, library)
    assert (folder / FILE).read_bytes() == content
    assert len(remote.requests.matching("/api/*/xet-read-token/*")) == 1


def test_what_is_there_of_a_file_is_gone_on_from(
    hub: Hub, library: Library, snapshot: Snapshot, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.make()
    (file,) = (file for file in snapshot.files if file.path == FILE)
    library.layout.partial_of(file).write_bytes(content[: 7 * MIB])
    with offsets_asked_for(monkeypatch) as asked:
        folder = fetch(hub, snapshot, snapshot.files, library)
    assert (folder / FILE).read_bytes() == content
    assert asked == [7 * MIB]


@pytest.mark.parametrize("gives", ["nothing", "other content"])
def test_storage_that_does_not_give_a_file_is_left_for_plain_http(
    remote: LocalHub, hub: Hub, library: Library, snapshot: Snapshot, content: bytes, tmp_path: Path, gives: str
) -> None:
    assert remote.store.xet is not None
    other = tmp_path / "other"
    other.write_bytes(os.urandom(len(content)))
    storage = remote.store.xet if gives == "other content" else HubXet(tmp_path / "elsewhere")
    remote.faults.add(Fault("/org/*", headers={"X-Xet-Hash": storage.hash_of("", other)}, times=None))
    notices: list[str] = []
    folder = fetch(hub, snapshot, snapshot.files, library, notice=notices.append)
    assert (folder / FILE).read_bytes() == content
    assert len(remote.requests.matching("/cdn/*")) == 1
    (notice,) = notices
    assert ("arrived damaged" if gives == "other content" else "trying again in 0 s (attempt 2 of 4)") in notice


def test_storage_that_gave_other_content_is_not_asked_again_when_plain_http_fails_too(
    remote: LocalHub, hub: Hub, library: Library, snapshot: Snapshot, content: bytes, tmp_path: Path
) -> None:
    assert remote.store.xet is not None
    other = tmp_path / "other"
    other.write_bytes(os.urandom(len(content)))
    hash_of_other = remote.store.xet.hash_of("", other)
    remote.faults.add(Fault("/org/*", headers={"X-Xet-Hash": hash_of_other}, times=None))
    remote.faults.add(Fault("/cdn/*", drop=True))
    folder = fetch(hub, snapshot, snapshot.files, library)
    assert (folder / FILE).read_bytes() == content
    assert len(remote.requests.matching("/api/*/xet-read-token/*")) == 1


@pytest.fixture
def silent(remote: LocalHub, snapshot: Snapshot) -> Iterator[None]:
    """Xet storage that takes connections and never answers."""
    assert remote.store.xet is not None
    with socket.create_server(("127.0.0.1", 0)) as server:
        remote.store.xet.endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        yield


@pytest.mark.usefixtures("silent")
def test_silent_storage_is_left_for_plain_http(
    hub: Hub, library: Library, snapshot: Snapshot, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xet, "STALL_S", 0.1)
    notices: list[str] = []
    folder = fetch(hub, snapshot, snapshot.files, library, notice=notices.append)
    assert (folder / FILE).read_bytes() == content
    assert "the xet storage 127.0.0.1:" in notices[0] and "nothing came for 0.1 s" in notices[0]


@pytest.mark.usefixtures("silent")
def test_cancel_leaves_silent_storage(remote: LocalHub, hub: Hub, library: Library, snapshot: Snapshot) -> None:
    cancelled = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        fetching = threads.submit(fetch, hub, snapshot, snapshot.files, library, cancelled=cancelled)
        remote.requests.wait_for("/api/*/xet-read-token/*")
        cancelled.set()
        with pytest.raises(Cancelled):
            fetching.result(5)
    with library.layout.partial_of(next(file for file in snapshot.files if file.sha256)).open("rb") as partial:
        assert try_lock(partial.fileno()), "the thread that fetched has ended and let go of its file"


def test_a_hub_that_is_silent_about_access_is_asked_again(
    remote: LocalHub, hub: Hub, library: Library, snapshot: Snapshot, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xet, "TOKEN_TIMEOUT_S", 0.2)
    remote.faults.add(Fault("/api/*/xet-read-token/*", hang=True))
    notices: list[str] = []
    folder = fetch(hub, snapshot, snapshot.files, library, notice=notices.append)
    assert (folder / FILE).read_bytes() == content
    assert "did not answer in time" in notices[0]
    assert remote.requests.matching("/cdn/*") == []


def test_xet_can_be_switched_off(
    remote: LocalHub, hub: Hub, library: Library, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    fetch(hub, snapshot, snapshot.files, library)
    assert len(remote.requests.matching("/cdn/*")) == 1


def test_the_token_goes_to_no_other_host_for_xet(remote: LocalHub, library: Library, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET)
    hub = Hub(remote.endpoint, TokenSource(tmp_path / "token"), patience=IMPATIENT)
    remote.offer_xet()
    remote.commit(REPO, {FILE: b"weights"})
    remote.require_token(REPO, SECRET)
    elsewhere = remote.endpoint.replace("127.0.0.1", "localhost")
    route = f'<{elsewhere}/api/models/{REPO}/xet-read-token/main>; rel="xet-auth"'
    remote.faults.add(Fault("/org/*", headers={"Link": route}, times=None))
    snapshot = hub.snapshot(REPO)
    fetch(hub, snapshot, snapshot.files, library)
    assert {request.host: request.had_token for request in remote.requests.matching()} == {
        "127.0.0.1": True,
        "localhost": False,
    }
    assert len(remote.requests.matching("/cdn/*")) == 1
    assert remote.requests.matching("/api/*/xet-read-token/*") == []


@pytest.mark.parametrize(
    ("route", "is_taken"),
    [
        ("https://hub.test/api/x", True),
        ("https://hub.test:443/api/x", True),
        ("http://hub.test/api/x", False),
        ("https://hub.test:8443/api/x", False),
        ("https://other.test/api/x", False),
    ],
)
def test_xet_is_asked_for_only_where_the_token_may_go(route: str, is_taken: bool) -> None:
    headers = {"X-Xet-Hash": "a" * 64, "Link": f'<{route}>; rel="xet-auth"'}
    answer = httpx2.Response(302, headers=headers, request=httpx2.Request("GET", "https://hub.test/x"))
    assert (xet.offered([answer], "https://hub.test") is not None) == is_taken


def test_xet_of_a_private_repository_is_asked_for_with_the_token(
    remote: LocalHub, library: Library, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(SECRET)
    hub = Hub(remote.endpoint, TokenSource(tmp_path / "token"), patience=IMPATIENT)
    remote.offer_xet()
    remote.commit(REPO, {FILE: b"weights"})
    remote.require_token(REPO, SECRET)
    snapshot = hub.snapshot(REPO)
    assert (fetch(hub, snapshot, snapshot.files, library) / FILE).read_bytes() == b"weights"
    (access,) = remote.requests.matching("/api/*/xet-read-token/*")
    assert access.had_token
