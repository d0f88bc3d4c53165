"""The hub: what a revision holds, and the bytes of one file from any offset."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol

import httpx2
from huggingface_hub import HfApi, ModelInfo, get_session, hf_hub_url, hf_raise_for_status
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # public, but loaded lazily

from llmgwd.domain.files import RepoFile, Snapshot, is_repo_name
from llmgwd.weights import xet
from llmgwd.weights.patience import Attempts, Patience
from llmgwd.weights.progress import NEVER, CancelFlag, Notice, abandonable, ignore_notice
from llmgwd.weights.token import Token, TokenSource
from llmgwd.weights.troubles import FAILURES, Asked, UnexpectedAnswerError, host_of, trouble

API_TIMEOUT_S = 15.0
BODY_TIMEOUT = httpx2.Timeout(10.0, read=30.0)


class Hub:
    """One endpoint, asked with the token of its source. Safe to use from several threads."""

    def __init__(self, endpoint: str, token: TokenSource | None = None, *, patience: Patience | None = None) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.patience = patience or Patience()
        self._token = token

    def snapshot(
        self,
        repo: str,
        revision: str | None = None,
        *,
        cancelled: CancelFlag = NEVER,
        notice: Notice = ignore_notice,
    ) -> Snapshot:
        """What the revision (branch, tag or commit; None: the default branch) holds now, pinned to its commit.

        Raises LlmgwError with a `hub_…` code, or Cancelled.
        """
        attempts = Attempts(self.patience, cancelled, notice)
        while True:
            asked = self.asked(repo, revision)
            try:
                return _snapshot(abandonable(partial(self._model_info, asked), cancelled), asked)
            except FAILURES as error:
                attempts.wait_after(trouble(error, asked))

    def asked(self, repo: str, revision: str | None, path: str | None = None) -> Asked:
        """What a request is about, with the token that goes with it. Raises LlmgwError `token_unreadable`."""
        token = self._token.read() if self._token else None
        return Asked(self.endpoint, repo, revision, path, token)

    def _model_info(self, asked: Asked) -> ModelInfo:
        if not is_repo_name(asked.repo):  # stricter than the client: the name becomes a folder's
            raise HFValidationError(asked.repo)
        api = HfApi(endpoint=self.endpoint, token=_secret(asked.token), library_name="llmgw")
        try:
            # Without a timeout of ours the client waits for ever.
            return api.model_info(asked.repo, revision=asked.revision, files_metadata=True, timeout=API_TIMEOUT_S)
        except HFValidationError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UnexpectedAnswerError("its answer is no model information, perhaps a page of a proxy") from error

    @contextmanager
    def open_file(self, asked: Asked, file: RepoFile, offset: int, *, by_xet: bool = True) -> Iterator["Body"]:
        """The content of a file from offset on. Raises one of FAILURES.

        by_xet: from xet storage where the hub offers it. The client's own `http_get` writes in pieces of 10 MB and
        sleeps where nobody can wake it; this is the same request through the same session and error types. Crossing to
        another host, the session drops the token.
        """
        headers = build_hf_headers(token=_secret(asked.token), library_name="llmgw")
        ranged = {**headers, "Accept-Encoding": "identity"}  # a compressed body could neither be measured nor resumed
        if offset:
            ranged["Range"] = f"bytes={offset}-"
        url = hf_hub_url(asked.repo, file.path, revision=asked.revision, endpoint=self.endpoint)
        with get_session().stream("GET", url, headers=ranged, timeout=BODY_TIMEOUT, follow_redirects=False) as first:
            found = xet.offered([first], self.endpoint) if by_xet else None
            if found is None:
                with _followed(first) as response:
                    found = xet.offered(response.history, self.endpoint) if by_xet else None
                    if found is None:
                        yield _http_body(response, file, offset)
                        return
        yield xet.XetBody(file, found, headers, offset)


class Body(Protocol):
    """A file being read from host. start is the offset in it of the first byte, None when there is no such range."""

    host: str
    start: int | None

    def chunks(self) -> Iterator[bytes]:
        """In the sizes in which they arrive, so that nothing waits in memory for more. Raises one of FAILURES."""

    def interrupt(self) -> None:
        """Ends a read that is blocked in another thread."""


class HttpBody:
    def __init__(self, response: httpx2.Response, start: int | None) -> None:
        self.host = host_of(response.url)
        self.start = start
        self._response = response

    def chunks(self) -> Iterator[bytes]:
        return self._response.iter_bytes()

    def interrupt(self) -> None:
        stream = self._response.extensions.get("network_stream")
        connection: socket.socket | None = stream.get_extra_info("socket") if stream is not None else None
        if connection is not None:
            with suppress(OSError):  # it was closed meanwhile
                connection.shutdown(socket.SHUT_RDWR)  # closing it would not wake the reader


@contextmanager
def _followed(first: httpx2.Response) -> Iterator[httpx2.Response]:
    """The answer at the end of all redirects."""
    if first.next_request is None:
        yield first
        return
    first.read()  # so that its connection can be used again
    response = get_session().send(first.next_request, stream=True, follow_redirects=True)
    try:
        yield response
    finally:
        response.close()


def _http_body(response: httpx2.Response, file: RepoFile, offset: int) -> HttpBody:
    if response.status_code == 416:
        return HttpBody(response, start=None)
    hf_raise_for_status(response)
    start = offset if response.status_code == 206 else 0
    _check_announced(response, file, start)
    return HttpBody(response, start)


def _secret(token: Token | None) -> str | bool:
    """False: the client must not look for a token of its own."""
    return token.reveal() if token else False


def _snapshot(info: ModelInfo, asked: Asked) -> Snapshot:
    try:
        files = tuple(
            RepoFile(
                path=entry.rfilename,
                size_bytes=entry.size if entry.size is not None else -1,
                sha256=entry.lfs.sha256 if entry.lfs else None,
                blob_id=entry.blob_id or "",
            )
            for entry in info.siblings or ()
        )
        for file in files:
            _ = file.content_id  # one without a hash could neither be compared nor verified
        return Snapshot(asked.repo, info.sha or "", files)
    except (ValueError, TypeError, AttributeError) as error:
        raise UnexpectedAnswerError(str(error)) from error


def _check_announced(response: httpx2.Response, file: RepoFile, start: int) -> None:
    """A page in the place of a file is recognised before a byte of it is written."""
    host, content_range = host_of(response.url), response.headers.get("Content-Range", "")
    if response.status_code == 206 and not content_range.startswith(f"bytes {start}-"):
        sent = content_range or "no range"
        raise UnexpectedAnswerError(f"asked for {file.path} from byte {start}, it sent {sent}", host)
    length = response.headers.get("Content-Length", "")
    is_encoded = "Content-Encoding" in response.headers
    missing = file.size_bytes - start
    if length.isdecimal() and not is_encoded and int(length) != missing:
        kind = response.headers.get("Content-Type", "unknown type")
        raise UnexpectedAnswerError(
            f"{file.path} should have {missing} bytes from byte {start} on, it sent {length} ({kind})", host
        )
