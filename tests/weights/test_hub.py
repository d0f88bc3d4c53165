"""What the hub's refusals become: a code, words that say what and whether a token was sent, and what to do next."""

import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.weights.fetch import fetch
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.patience import Patience
from llmgwd.weights.progress import Cancelled
from llmgwd.weights.token import TokenSource
from llmgwd.weights.troubles import Asked, trouble
from tests.support.local_hub import Fault, LocalHub
from tests.weights.conftest import IMPATIENT

REPO = "org/model"
SECRET = "hf_aVerySecretToken"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    return path


@pytest.fixture
def with_token(remote: LocalHub, token_file: Path) -> Hub:
    return Hub(remote.endpoint, TokenSource(token_file), patience=IMPATIENT)


@pytest.mark.parametrize("revision", [None, "main", "v1", "sha"])
def test_snapshot_is_pinned(remote: LocalHub, hub: Hub, revision: str | None) -> None:
    sha = remote.commit(REPO, {"m-Q4_K_M.gguf": b"weights", "config.json": b"{}"})
    remote.set_ref(REPO, "v1", sha)
    snapshot = hub.snapshot(REPO, sha if revision == "sha" else revision)
    assert (snapshot.repo, snapshot.sha) == (REPO, sha)
    config, weights = snapshot.files
    assert (weights.path, weights.size_bytes, len(weights.sha256 or "")) == ("m-Q4_K_M.gguf", 7, 64)
    assert (config.path, config.size_bytes, config.sha256, len(config.blob_id)) == ("config.json", 2, None, 40)


Prepare = Callable[[LocalHub], None]


def private(remote: LocalHub) -> None:
    remote.require_token(REPO, "hf_other")


def gated(remote: LocalHub) -> None:
    remote.require_token(REPO, "hf_other", kind="gated")


def answers(status: int) -> Prepare:
    return lambda remote: remote.faults.add(Fault("/api/*", status=status, times=None))


def fails(fault: Fault) -> Prepare:
    return lambda remote: remote.faults.add(fault)


@pytest.mark.parametrize(
    ("prepare", "repo", "code", "message", "hint"),
    [
        pytest.param(
            lambda remote: None,
            "org/modle",
            "hub_no_repository",
            "{host} has no repository org/modle, or hides it (no token was sent)",
            "check the name; if it is private, set hub.token_file, or HF_TOKEN in the environment of llmgwd, to a token"
            " with access",
            id="no-repository",
        ),
        pytest.param(
            private,
            REPO,
            "hub_no_repository",
            "{host} has no repository org/model, or hides it (no token was sent)",
            "check the name; if it is private, set hub.token_file, or HF_TOKEN in the environment of llmgwd, to a token"
            " with access",
            id="private-without-token",
        ),
        pytest.param(
            answers(401),
            REPO,
            "hub_token_refused",
            "{host} asks for a token (no token was sent)",
            "set hub.token_file, or HF_TOKEN in the environment of llmgwd, to a token with access",
            id="401",
        ),
        pytest.param(
            answers(403),
            REPO,
            "hub_forbidden",
            "{host} denies access to org/model (no token was sent)",
            "set hub.token_file, or HF_TOKEN in the environment of llmgwd, to a token with access",
            id="403",
        ),
        pytest.param(
            answers(503),
            REPO,
            "hub_unavailable",
            "{host} answered 503 for org/model (no token was sent)",
            "try again later; what was fetched is kept",
            id="503",
        ),
        pytest.param(
            fails(Fault.rate_limited("/api/*", seconds=900, times=None)),
            REPO,
            "hub_rate_limited",
            "{host} limits requests (429, no token was sent); it asks to wait 900 s",
            "a token has a higher limit: set hub.token_file or HF_TOKEN; or try again later",
            id="429-for-too-long",
        ),
        pytest.param(
            fails(Fault.html_page("/api/*", times=None)),
            REPO,
            "hub_unexpected_answer",
            "{host} did not answer like a hub: its answer is no model information, perhaps a page of a proxy"
            " (no token was sent)",
            "check hub.endpoint and the proxy between here and there",
            id="page-of-a-proxy",
        ),
        pytest.param(
            fails(Fault("/api/*", drop=True, times=None)),
            REPO,
            "hub_dropped",
            "the connection to {host} was lost: Server disconnected without sending a response (no token was sent)",
            "try again later; what was fetched is kept",
            id="dropped",
        ),
        pytest.param(
            lambda remote: None,
            "../api/x",
            "hub_repository_name",
            "'../api/x' is not a repository name",
            "write it as ORG/REPO",
            id="name",
        ),
    ],
)
def test_refused_snapshot(
    remote: LocalHub, hub: Hub, prepare: Prepare, repo: str, code: str, message: str, hint: str
) -> None:
    remote.commit(REPO, {"m-Q4_K_M.gguf": b"weights"})
    prepare(remote)
    with pytest.raises(LlmgwError) as error:
        hub.snapshot(repo)
    host = remote.endpoint.removeprefix("http://")
    assert (error.value.code, error.value.message, error.value.hint) == (code, message.format(host=host), hint)
    assert error.value.__cause__ is not None


@pytest.mark.parametrize("status", [401, 403, 404, 418])
def test_a_refusal_is_asked_for_once(remote: LocalHub, hub: Hub, status: int) -> None:
    answers(status)(remote)
    notices: list[str] = []
    with pytest.raises(LlmgwError):
        hub.snapshot(REPO, notice=notices.append)
    assert len(remote.requests.matching("/api/*")) == 1
    assert notices == []


def test_missing_revision_is_named(remote: LocalHub, hub: Hub) -> None:
    remote.commit(REPO, {"m-Q4_K_M.gguf": b"weights"})
    with pytest.raises(LlmgwError) as error:
        hub.snapshot(REPO, "v9")
    host = remote.endpoint.removeprefix("http://")
    assert error.value.code == "hub_no_revision"
    assert error.value.message == f"{host} has no revision v9 of org/model (no token was sent)"


def test_gated_files_say_where_to_ask(remote: LocalHub, hub: Hub, with_token: Hub, library: Library) -> None:
    remote.commit(REPO, {"m-Q4_K_M.gguf": b"weights"})
    gated(remote)
    for asking, sent in ((hub, "no token was sent"), (with_token, "token was sent")):
        snapshot = asking.snapshot(REPO)
        with pytest.raises(LlmgwError) as error:
            fetch(asking, snapshot, snapshot.files, library)
        assert error.value.code == "hub_gated"
        assert sent in error.value.message
        assert f"ask for access at {remote.endpoint}/{REPO}" in error.value.hint


def test_refused_token_is_not_shown(remote: LocalHub, with_token: Hub, token_file: Path) -> None:
    remote.commit(REPO, {"m-Q4_K_M.gguf": b"weights"})
    private(remote)
    with pytest.raises(LlmgwError) as error:
        with_token.snapshot(REPO)
    assert f"the token from {token_file} was sent" in error.value.message
    shown = f"{error.value!r} {error.value.message} {error.value.hint} {TokenSource(token_file).read()!r}"
    assert SECRET not in shown


def test_token_goes_to_the_hub_and_to_no_other_host(remote: LocalHub, with_token: Hub, library: Library) -> None:
    remote.commit(REPO, {"m-Q4_K_M.gguf": b"weights", "config.json": b"{}"})
    remote.require_token(REPO, SECRET)
    snapshot = with_token.snapshot(REPO)
    fetch(with_token, snapshot, snapshot.files, library)
    by_host = {request.host: request.had_token for request in remote.requests.matching()}
    assert by_host == {"127.0.0.1": True, "localhost": False}


@pytest.mark.parametrize(("path", "asks"), [("/api/*", "list"), ("/org/*", "file")])
def test_token_does_not_follow_a_redirect_to_another_host(
    remote: LocalHub, with_token: Hub, library: Library, path: str, asks: str
) -> None:
    sha = remote.commit(REPO, {"m-Q4_K_M.gguf": b"weights", "config.json": b"{}"})
    elsewhere = remote.endpoint.replace("127.0.0.1", "localhost")
    moved = {"list": f"/api/models/{REPO}", "file": f"/{REPO}/resolve/{sha}/config.json"}[asks]
    snapshot = with_token.snapshot(REPO)
    remote.requests.clear()
    remote.faults.add(Fault(path, status=307, headers={"Location": f"{elsewhere}{moved}"}))
    if asks == "list":
        with_token.snapshot(REPO)
    else:
        config = [file for file in snapshot.files if file.path == "config.json"]
        fetch(with_token, snapshot, config, library)
    assert [(request.host, request.had_token) for request in remote.requests.matching()] == [
        ("127.0.0.1", True),
        ("localhost", False),
    ]


def test_token_of_the_environment_is_used_and_named(
    remote: LocalHub, monkeypatch: pytest.MonkeyPatch, library: Library
) -> None:
    remote.commit(REPO, {"m-Q4_K_M.gguf": b"weights"})
    monkeypatch.setenv("HF_TOKEN", SECRET)
    hub = Hub(remote.endpoint, TokenSource(), patience=IMPATIENT)
    hub.snapshot(REPO)
    assert remote.requests.matching("/api/*")[0].had_token
    assert repr(TokenSource().read()) == "<token from the environment>"


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot read the hub token from {path}: No such file or directory"), ("\n", "{path} holds no token")],
    ids=["missing", "empty"],
)
def test_named_token_file_without_token_is_an_error(
    remote: LocalHub, tmp_path: Path, content: str | None, reason: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(LlmgwError) as error:
        Hub(remote.endpoint, TokenSource(path)).snapshot(REPO)
    assert error.value.message == reason.format(path=path)
    assert remote.requests.matching() == []


@pytest.mark.parametrize(
    "content",
    [SECRET.encode("utf-16-le"), SECRET.encode("utf-16"), SECRET.encode() + b"\x1b", f"{SECRET}é".encode()],
    ids=["utf-16", "utf-16-with-its-mark", "control", "accent"],
)
def test_token_file_that_is_no_plain_text_is_refused_and_not_shown(
    remote: LocalHub, tmp_path: Path, content: bytes
) -> None:
    path, notices = tmp_path / "token", list[str]()
    path.write_bytes(content)
    with pytest.raises(LlmgwError) as error:
        Hub(remote.endpoint, TokenSource(path), patience=IMPATIENT).snapshot(REPO, notice=notices.append)
    assert error.value.code == "token_unreadable"
    assert error.value.message.startswith(f"cannot read the hub token from {path}: it is not plain text")
    assert (notices, remote.requests.matching()) == ([], [])


def test_token_of_the_environment_that_cannot_be_sent_is_refused_and_not_shown(
    remote: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", f"{SECRET}é")
    with pytest.raises(LlmgwError) as error:
        Hub(remote.endpoint, TokenSource(), patience=IMPATIENT).snapshot(REPO)
    assert (error.value.code, error.value.message) == (
        "token_unreadable",
        "the hub token from the environment is not plain text",
    )


def test_request_that_cannot_be_sent_is_told_without_its_headers() -> None:
    error = httpx2.LocalProtocolError(f"Illegal header value b'Bearer {SECRET}'")
    told = trouble(error, Asked("http://hub.test", REPO))
    assert told.error.message == "a request to hub.test cannot be sent as it is (no token was sent)"
    assert not told.may_pass


@pytest.mark.parametrize(
    "change",
    [
        lambda info: [file.pop("blobId", None) or file.pop("lfs", None) for file in info["siblings"]],
        lambda info: info.update(lastModified="Tue, 1 Dec 2026"),
        lambda info: info["siblings"][0].update(rfilename=7),
        lambda info: info["siblings"][0].update(size="abc"),
        lambda info: info.update(sha=5),
    ],
    ids=["no-hash", "time", "name", "size", "commit"],
)
def test_listing_that_cannot_be_used_is_an_unexpected_answer(
    remote: LocalHub, hub: Hub, change: Callable[[dict[str, Any]], object]
) -> None:
    remote.commit(REPO, {"config.json": b"{}"})
    info = httpx2.get(f"{remote.endpoint}/api/models/{REPO}?blobs=true").json()
    change(info)
    headers = {"Content-Type": "application/json"}
    body = json.dumps(info).encode()
    remote.faults.add(Fault("/api/*", status=200, headers=headers, body=body, times=None))
    with pytest.raises(LlmgwError) as error:
        hub.snapshot(REPO)
    assert error.value.code == "hub_unexpected_answer"


@pytest.mark.parametrize("path", ["/api/*", "/cdn/*", "/org/*"])
def test_429_twice_then_fine(remote: LocalHub, hub: Hub, library: Library, path: str) -> None:
    remote.commit(REPO, {"m-Q4_K_M.gguf": b"weights"})
    remote.faults.add(Fault.rate_limited(path, seconds=0, times=2))
    notices: list[str] = []
    snapshot = hub.snapshot(REPO, notice=notices.append)
    folder = fetch(hub, snapshot, snapshot.files, library, notice=notices.append)
    assert (folder / "m-Q4_K_M.gguf").read_bytes() == b"weights"
    assert len(notices) == 2
    assert notices[1].endswith("trying again in 0 s (attempt 3 of 4)")


@pytest.mark.parametrize(
    "fault",
    [
        Fault("/cdn/*", status=503, times=None),
        Fault("/cdn/*", status=403, times=None),
        Fault("/cdn/*", drop=True, times=None),
        Fault.html_page("/cdn/*", times=None),
        Fault.html_page("/org/*", times=None),
    ],
    ids=["503", "expired-link", "dropped", "page", "page-for-the-link"],
)
def test_retries_of_a_file_end(remote: LocalHub, hub: Hub, library: Library, fault: Fault) -> None:
    remote.commit(REPO, {"m-Q4_K_M.gguf": b"weights"})
    snapshot = hub.snapshot(REPO)
    remote.faults.add(fault)
    with pytest.raises(LlmgwError) as error:
        fetch(hub, snapshot, snapshot.files, library)
    assert error.value.code.startswith("hub_")
    assert len(remote.requests.matching("/org/*")) == IMPATIENT.attempts
    assert not library.folder(REPO, snapshot.sha).exists()


def test_nobody_listening_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(LlmgwError) as error:
        Hub(f"http://127.0.0.1:{port}", patience=IMPATIENT).snapshot(REPO)
    assert error.value.code == "hub_unreachable"
    assert error.value.message.startswith(f"cannot connect to 127.0.0.1:{port}: ")


@pytest.mark.parametrize("endpoint", ["huggingface.co", "ftp://huggingface.co", "http://[::1"])
def test_endpoint_that_is_no_address_is_said_so(endpoint: str) -> None:
    with pytest.raises(LlmgwError) as error:
        Hub(endpoint, patience=IMPATIENT).snapshot(REPO)
    assert (error.value.code, error.value.hint) == ("hub_endpoint", "correct hub.endpoint")
    assert error.value.message == f"{endpoint} is not the address of a hub (no token was sent)"


@pytest.mark.parametrize(
    ("endpoint", "host", "address"),
    [
        ("https://hub.test", "hub.test", "https://hub.test"),
        ("http://user:s3cret@hub.test:8080/hf", "hub.test:8080", "http://hub.test:8080/hf"),
        ("user:s3@cret@hub.test", "hub.test", "hub.test"),
    ],
)
def test_endpoint_is_shown_without_user_and_password(endpoint: str, host: str, address: str) -> None:
    asked = Asked(endpoint, REPO)
    assert (asked.host, asked.address) == (host, address)


def test_offline_is_said_so(remote: LocalHub, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(LlmgwError) as error:
        hub.snapshot(REPO)
    assert error.value.code == "hub_offline"


def test_cancel_leaves_a_hub_that_does_not_answer(remote: LocalHub) -> None:
    remote.commit(REPO, {"m-Q4_K_M.gguf": b"weights"})
    remote.faults.add(Fault("/api/*", hang=True))
    cancelled = threading.Event()
    hub = Hub(remote.endpoint, patience=Patience(attempts=1))
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(hub.snapshot, REPO, cancelled=cancelled)
        remote.requests.wait_for("/api/*")
        cancelled.set()
        with pytest.raises(Cancelled):
            asking.result(1.0)


def test_refused_name_is_a_matter_of_usage(remote: LocalHub, hub: Hub) -> None:
    with pytest.raises(LlmgwError) as error:
        hub.snapshot("a/b/c")
    assert (error.value.code, error.value.status) == ("hub_repository_name", ExitStatus.USAGE)
    assert remote.requests.matching() == []
