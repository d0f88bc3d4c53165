"""The local hub against the real client."""

import io
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from huggingface_hub import HfApi, RepoFile, get_hf_file_metadata, hf_hub_download, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get

from tests.support.local_hub import Content, Fault, LocalHub

REPO = "org/repo"
WEIGHTS = bytes(range(256)) * 4096
FILES: dict[str, Content | None] = {"model.Q8_0.gguf": WEIGHTS, "README.md": "# A model", "extra/config.json": "{}"}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LocalHub]:
    with LocalHub(tmp_path / "hub") as hub:
        hub.commit(REPO, FILES)
        yield hub


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds the client would have slept between its own retries."""
    waits: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time", SimpleNamespace(sleep=waits.append))
    monkeypatch.setattr("huggingface_hub.file_download.time", SimpleNamespace(sleep=waits.append))
    return waits


def api(hub: LocalHub, token: str | bool = False) -> HfApi:
    return HfApi(endpoint=hub.endpoint, token=token)


def file_url(hub: LocalHub, path: str = "model.Q8_0.gguf", repo: str = REPO) -> str:
    return hf_hub_url(repo, path, endpoint=hub.endpoint)


def download(
    hub: LocalHub, folder: Path, path: str, *, repo: str = REPO, revision: str | None = None, token: str | bool = False
) -> bytes:
    found = hf_hub_download(
        repo, path, revision=revision, endpoint=hub.endpoint, token=token, local_dir=folder, cache_dir=folder / "cache"
    )
    return Path(found).read_bytes()


def fetch(url: str, *, already: bytes = b"", expected_size: int | None = None) -> bytes:
    file = io.BytesIO(already)
    file.seek(len(already))
    http_get(url, file, resume_size=len(already), expected_size=expected_size)
    return file.getvalue()


def test_info_names_the_commit_and_every_file(hub: LocalHub) -> None:
    info = api(hub).model_info(REPO, files_metadata=True)

    assert info.sha is not None
    assert len(info.sha) == 40
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
    assert list(siblings) == sorted(FILES)
    assert siblings["README.md"].size == 9
    assert siblings["README.md"].lfs is None
    large = siblings["model.Q8_0.gguf"]
    assert large.lfs is not None
    assert (large.size, large.lfs.size) == (len(WEIGHTS), len(WEIGHTS))
    assert large.lfs.sha256 == get_hf_file_metadata(file_url(hub), token=False).etag


def test_a_pinned_revision_stays_when_main_moves(hub: LocalHub, tmp_path: Path) -> None:
    old = api(hub).model_info(REPO).sha
    assert old is not None
    hub.set_ref(REPO, "v1", old)

    new = hub.commit(REPO, {"README.md": "# Newer", "extra/config.json": None}, message="newer readme")

    assert api(hub).model_info(REPO).sha == new
    assert api(hub).model_info(REPO, revision="v1").sha == old
    assert download(hub, tmp_path / "old", "README.md", revision=old) == b"# A model"
    assert download(hub, tmp_path / "new", "README.md") == b"# Newer"
    assert api(hub).list_repo_files(REPO) == ["README.md", "model.Q8_0.gguf"]
    assert [commit.title for commit in api(hub).list_repo_commits(REPO)] == ["newer readme", "Upload files"]


def test_a_commit_sha_depends_on_parent_message_and_content_only(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(WEIGHTS)
    one, other = LocalHub(tmp_path / "one"), LocalHub(tmp_path / "other")

    first = one.commit(REPO, FILES)

    assert other.commit(REPO, {**FILES, "model.Q8_0.gguf": tmp_path / "weights"}) == first
    assert one.commit(REPO, {}) != first


@pytest.mark.parametrize("path", ["", "/etc/passwd", "a/../b", "a//b"])
def test_a_path_outside_the_repository_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="not a path inside a repository"):
        LocalHub(tmp_path).commit(REPO, {path: b""})


def test_the_tree_comes_in_pages_and_with_folders(hub: LocalHub) -> None:
    hub.tree_page_size = 2

    entries = list(api(hub).list_repo_tree(REPO, recursive=True))

    assert [entry.path for entry in entries] == ["README.md", "extra", "extra/config.json", "model.Q8_0.gguf"]
    assert len(hub.requests.matching("/api/*/tree/*")) == 2
    large = entries[-1]
    assert isinstance(large, RepoFile)
    assert large.lfs is not None
    assert large.lfs.sha256 == get_hf_file_metadata(file_url(hub), token=False).etag
    assert [entry.path for entry in api(hub).list_repo_tree(REPO, "extra")] == ["extra/config.json"]


def test_a_large_file_is_on_another_host(hub: LocalHub) -> None:
    small = get_hf_file_metadata(file_url(hub, "README.md"), token=False)
    large = get_hf_file_metadata(file_url(hub), token=False)

    assert small.commit_hash == large.commit_hash == api(hub).model_info(REPO).sha
    assert (small.size, large.size) == (9, len(WEIGHTS))
    assert small.location.startswith("http://127.0.0.1:")
    assert large.location.startswith("http://localhost:")


def test_the_size_from_which_a_file_is_large_is_a_setting(tmp_path: Path) -> None:
    with LocalHub(tmp_path, large_file_bytes=10) as hub:
        hub.commit(REPO, {"a.txt": "123456789", "b.txt": "1234567890"})
        siblings = api(hub).model_info(REPO, files_metadata=True).siblings or []
        assert [sibling.lfs is not None for sibling in siblings] == [False, True]


def test_a_second_download_asks_for_nothing(hub: LocalHub, tmp_path: Path) -> None:
    sha = api(hub).model_info(REPO).sha
    assert download(hub, tmp_path / "weights", "model.Q8_0.gguf", revision=sha) == WEIGHTS
    assert [request.body_bytes for request in hub.requests.matching("/cdn/*")] == [len(WEIGHTS)]
    hub.requests.clear()

    assert download(hub, tmp_path / "weights", "model.Q8_0.gguf", revision=sha) == WEIGHTS

    assert hub.requests.matching() == []


def test_a_snapshot_has_the_files_that_match(hub: LocalHub, tmp_path: Path) -> None:
    folder = snapshot_download(
        REPO, endpoint=hub.endpoint, token=False, allow_patterns=["*.json"], cache_dir=tmp_path / "cache"
    )
    assert [path.name for path in Path(folder).rglob("*") if path.is_file()] == ["config.json"]


def test_a_token_never_reaches_the_other_host(hub: LocalHub, tmp_path: Path) -> None:
    hub.require_token(REPO, "right")

    assert download(hub, tmp_path / "weights", "model.Q8_0.gguf", token="right") == WEIGHTS

    assert {(request.host, request.had_token) for request in hub.requests.matching()} == {
        ("127.0.0.1", True),
        ("localhost", False),
    }


@pytest.mark.parametrize("path", ["model.Q8_0.gguf", "README.md"])
def test_a_download_resumes_where_it_stopped(hub: LocalHub, path: str) -> None:
    whole = fetch(file_url(hub, path))
    hub.requests.clear()

    assert fetch(file_url(hub, path), already=whole[:5], expected_size=len(whole)) == whole

    last = hub.requests.matching()[-1]
    assert (last.status, last.range, last.body_bytes) == (206, "bytes=5-", len(whole) - 5)


def test_a_range_past_the_end_is_not_satisfiable(hub: LocalHub) -> None:
    with pytest.raises(HfHubHTTPError, match="416"):
        fetch(file_url(hub), already=WEIGHTS)


@pytest.mark.parametrize(
    ("ask", "error", "status"),
    [
        (lambda hub, to: api(hub).model_info("org/none"), RepositoryNotFoundError, 404),
        (lambda hub, to: api(hub).model_info(REPO, revision="v9"), RevisionNotFoundError, 404),
        (lambda hub, to: download(hub, to, "none.gguf"), RemoteEntryNotFoundError, 404),
        (lambda hub, to: api(hub).model_info("org/private"), RepositoryNotFoundError, 401),
        (lambda hub, to: api(hub, "wrong").model_info("org/private"), HfHubHTTPError, 401),
        (lambda hub, to: download(hub, to, "a", repo="org/private", token="wrong"), HfHubHTTPError, 401),
        (lambda hub, to: download(hub, to, "a", repo="org/gated"), GatedRepoError, 401),
        (lambda hub, to: download(hub, to, "a", repo="org/gated", token="wrong"), GatedRepoError, 403),
    ],
    ids=["repo", "revision", "entry", "private", "wrong-token", "wrong-token-file", "gated", "gated-wrong-token"],
)
def test_each_refusal_is_an_error_of_its_own(
    hub: LocalHub, tmp_path: Path, ask: Callable[[LocalHub, Path], object], error: type[HfHubHTTPError], status: int
) -> None:
    for kind in ("private", "gated"):
        hub.commit(f"org/{kind}", {"a": "a"})
    hub.require_token("org/private", "right")
    hub.require_token("org/gated", "right", kind="gated")

    with pytest.raises(error) as raised:
        ask(hub, tmp_path / "to")

    assert type(raised.value) is error
    assert raised.value.response.status_code == status


def test_the_right_token_opens_private_and_gated_repositories(hub: LocalHub, tmp_path: Path) -> None:
    hub.commit("org/gated", {"a": "a"})
    hub.require_token(REPO, "right")
    hub.require_token("org/gated", "right", kind="gated")

    assert api(hub, "right").model_info(REPO).private
    assert api(hub).model_info("org/gated").gated == "manual"
    assert download(hub, tmp_path / "to", "a", repo="org/gated", token="right") == b"a"


def test_a_rate_limit_says_when_to_come_back(hub: LocalHub, waits: list[float]) -> None:
    hub.faults.add(Fault.rate_limited(seconds=3, times=2))
    with pytest.raises(HfHubHTTPError, match="Retry after 3 seconds") as raised:
        api(hub).model_info(REPO)
    assert raised.value.response.headers["Retry-After"] == "3"

    assert fetch(file_url(hub)) == WEIGHTS
    assert waits == [4.0]


def test_a_cut_download_goes_on_from_the_last_whole_piece(
    hub: LocalHub, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    hub.faults.add(Fault("*.gguf", drop_after=1500))

    assert fetch(file_url(hub)) == WEIGHTS

    asked = [(request.range, request.body_bytes) for request in hub.requests.matching("/cdn/*")]
    assert asked == [(None, 1500), ("bytes=1000-", len(WEIGHTS) - 1000)]
    assert waits == [1]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("/cdn/*", drop_after=1500, reset=True), httpx2.ReadError),
        (Fault("/cdn/*", status=500), HfHubHTTPError),
        (Fault("/cdn/*", status=403), HfHubHTTPError),
        (Fault.html_page("/cdn/*"), OSError),
        (Fault.html_page("*/resolve/*"), LocalEntryNotFoundError),
    ],
    ids=["reset", "status-500", "status-403", "html-file", "html-metadata"],
)
def test_a_fault_fails_a_download(hub: LocalHub, tmp_path: Path, fault: Fault, error: type[Exception]) -> None:
    hub.faults.add(fault)
    with pytest.raises(error):
        download(hub, tmp_path / "to", "model.Q8_0.gguf")
    assert download(hub, tmp_path / "to", "model.Q8_0.gguf") == WEIGHTS


@pytest.mark.parametrize("already", [0, 50, 150])
def test_a_flipped_byte_is_the_same_byte_of_the_file_when_resumed(hub: LocalHub, already: int) -> None:
    hub.faults.add(Fault("/cdn/*", flip_byte_at=100))

    got = fetch(file_url(hub), already=WEIGHTS[:already])

    wrong = [at for at, (a, b) in enumerate(zip(got, WEIGHTS, strict=True)) if a != b]
    assert wrong == ([100] if already <= 100 else [])


@pytest.mark.parametrize("fault", [Fault(drop=True), Fault(drop=True, reset=True)], ids=["close", "reset"])
def test_a_connection_closes_without_an_answer(hub: LocalHub, fault: Fault) -> None:
    hub.faults.add(fault)
    with pytest.raises((httpx2.RemoteProtocolError, httpx2.ReadError)):
        api(hub).model_info(REPO)


@pytest.mark.parametrize("fault", [Fault(hang=True), Fault(hang_after=10)], ids=["no-answer", "no-more-body"])
def test_a_hub_that_hangs_runs_into_the_time_out(hub: LocalHub, fault: Fault) -> None:
    hub.faults.add(fault)
    with pytest.raises(httpx2.ReadTimeout):
        api(hub).model_info(REPO, timeout=0.1)


def test_a_throttled_body_takes_its_time(hub: LocalHub) -> None:
    hub.faults.add(Fault("/cdn/*", bytes_per_s=10 * len(WEIGHTS)))
    started = time.monotonic()
    assert fetch(file_url(hub)) == WEIGHTS
    assert time.monotonic() - started >= 0.1


def test_a_fault_hits_as_often_as_asked_and_only_what_it_names(hub: LocalHub) -> None:
    hub.faults.add(Fault("/api/*", after=1, times=2, status=503))
    hub.faults.add(Fault(method="HEAD", times=None, status=418))

    for _ in range(4):
        httpx2.get(f"{hub.endpoint}/api/models/{REPO}")
        httpx2.head(file_url(hub))

    assert [request.status for request in hub.requests.matching(method="GET")] == [200, 503, 503, 200]
    assert [request.status for request in hub.requests.matching(method="HEAD")] == [418] * 4


def test_cleared_faults_are_gone_and_let_go_of_what_hangs(hub: LocalHub) -> None:
    hub.faults.add(Fault(times=None, hang_after=5))
    with httpx2.stream("GET", file_url(hub, "README.md")) as response:
        hub.faults.clear()
        with pytest.raises(httpx2.RemoteProtocolError):
            response.read()
    assert fetch(file_url(hub, "README.md")) == b"# A model"


def test_waiting_for_a_request_that_never_comes_times_out(hub: LocalHub) -> None:
    with pytest.raises(TimeoutError, match=r"/cdn/\*"):
        hub.requests.wait_for("/cdn/*", timeout_s=0.01)


def test_a_closed_hub_answers_no_one_and_comes_back_on_its_port(hub: LocalHub) -> None:
    with httpx2.Client() as client:
        client.get(file_url(hub, "README.md"))
        hub.close()
        with pytest.raises(httpx2.TransportError):
            client.get(file_url(hub, "README.md"))
        hub.start()
        assert client.get(file_url(hub, "README.md")).text == "# A model"


def test_a_folder_is_served_by_a_process_of_its_own(hub: LocalHub, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.local_hub", str(tmp_path / "hub"), "--port", "0"]
    project = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=project) as served:
        assert served.stdout is not None
        try:
            endpoint = served.stdout.readline().strip()
            new = hub.commit(REPO, {"README.md": "# Newer"})
            assert HfApi(endpoint=endpoint, token=False).model_info(REPO).sha == new
        finally:
            served.terminate()
        assert served.wait(10) == 0
