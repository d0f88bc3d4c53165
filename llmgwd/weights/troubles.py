"""What the hub's refusals and the network's failures mean, whether a token was sent, and what to do next."""

import re
import ssl

import httpx2
import msgspec
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]  # public, but loaded lazily

from llmgwd.domain.errors import LlmgwError, unusable
from llmgwd.weights.patience import Trouble
from llmgwd.weights.token import Token

TRY_LATER = "try again later; what was fetched is kept"


class UnexpectedAnswerError(Exception):
    """Something other than the hub answered in its place, or it sent what it had not announced."""


class XetError(Exception):
    """The storage that the hub points to did not give a file, in the words of the client's library."""


class Asked(msgspec.Struct, frozen=True):
    """What was asked of which hub."""

    endpoint: str
    repo: str
    revision: str | None = None
    path: str | None = None
    token: Token | None = None

    @property
    def host(self) -> str:
        """With its port. Never the user and password that an endpoint may have in front of it."""
        return self.address.partition("://")[2].partition("/")[0] or self.address

    @property
    def address(self) -> str:
        """The endpoint, for people."""
        return re.sub(r"^([a-z]+://)?[^/]*@", r"\1", self.endpoint)

    def with_token(self) -> str:
        return f"the token from {self.token.source} was sent" if self.token else "no token was sent"

    def get_access(self) -> str:
        if self.token:
            return f"give the account of that token access at {self.address}/{self.repo}, or use another token"
        return "set hub.token_file, or HF_TOKEN in the environment of llmgwd, to a token with access"


FAILURES = (
    *(httpx2.HTTPError, httpx2.InvalidURL, OfflineModeIsEnabled, HFValidationError),
    *(UnexpectedAnswerError, XetError),
)
"""What `trouble` can put into words. HTTPError includes the client's own HfHubHTTPError."""


def trouble(error: Exception, asked: Asked) -> Trouble:
    """error is one of FAILURES; it becomes the cause of the trouble's error."""
    found = _trouble(error, asked)
    found.error.__cause__ = error
    return found


def _trouble(error: Exception, asked: Asked) -> Trouble:
    match error:
        case HFValidationError():
            message = f"{asked.repo!r} is not a repository name"
            return Trouble(unusable("hub_repository_name", message, hint="write it as ORG/REPO"))
        case OfflineModeIsEnabled():
            message = f"HF_HUB_OFFLINE is set, so {asked.host} was not asked about {asked.repo}"
            return _final("hub_offline", message, "unset it, or name a revision whose files are on disk")
        case HfHubHTTPError():
            return _refusal(error, asked)
        case UnexpectedAnswerError():
            hint = "check hub.endpoint and the proxy between here and there"
            return _passing("hub_unexpected_answer", f"{asked.host} did not answer like a hub: {error}", hint)
        case XetError():
            message = f"the xet storage that {asked.host} points to did not give {asked.path}: {error}"
            return _passing("hub_storage", message, TRY_LATER)
        case httpx2.TimeoutException():
            return _passing("hub_timeout", f"{asked.host} did not answer in time", TRY_LATER)
        case httpx2.ConnectError() if isinstance(error.__context__, ssl.SSLError) or "CERTIFICATE" in str(error):
            hint = "check the clock, and SSL_CERT_FILE if a proxy has a certificate of its own"
            return _final("hub_certificate", f"{asked.host} has no certificate that is trusted here: {error}", hint)
        case httpx2.ConnectError() | httpx2.ProxyError():
            hint = "check the network, hub.endpoint and the proxy variables; models that are served are not affected"
            return _passing("hub_unreachable", f"cannot connect to {asked.host}: {error}", hint)
        case httpx2.LocalProtocolError():  # its text quotes the header that it refuses, which may be the token's
            hint = "check the token and hub.endpoint for characters that do not belong there"
            return _final("hub_request", f"a request to {asked.host} cannot be sent as it is", hint)
        case httpx2.UnsupportedProtocol() | httpx2.InvalidURL():
            return _final("hub_endpoint", f"{asked.address} is not the address of a hub", "correct hub.endpoint")
        case _:
            return _passing(
                "hub_dropped", f"the connection to {asked.host} was lost: {str(error).rstrip('.')}", TRY_LATER
            )


def _refusal(error: HfHubHTTPError, asked: Asked) -> Trouble:
    status, sent = error.response.status_code, asked.with_token()
    match error:
        case GatedRepoError():
            message = f"{asked.repo} is gated and gives its files to approved accounts only ({sent})"
            return _final("hub_gated", message, _approval(asked))
        case RepositoryNotFoundError():
            message = f"{asked.host} has no repository {asked.repo}, or hides it ({sent})"
            return _final("hub_no_repository", message, f"check the name; if it is private, {asked.get_access()}")
        case RevisionNotFoundError():
            message = f"{asked.repo} has no revision {asked.revision}"
            return _final("hub_no_revision", message, "name a branch, a tag or a commit of it")
        case RemoteEntryNotFoundError():
            message = f"{asked.repo} has no file {asked.path} at {(asked.revision or 'main')[:12]}"
            return _final("hub_no_file", message, "the listing names it, so the revision may be damaged; try another")
        case DisabledRepoError():
            message = f"{asked.repo} was disabled by {asked.host}"
            return _final("hub_disabled", message, "use another repository")
    if not _is_from_hub(error.response, asked):
        message = f"the storage that {asked.host} points to answered {status} for {asked.path}"
        return _passing("hub_storage", message, TRY_LATER)
    if status == 401:
        if asked.token is None:
            return _final("hub_token_refused", f"{asked.host} asks for a token ({sent})", asked.get_access())
        message = f"{asked.host} does not accept the token ({sent})"
        return _final("hub_token_refused", message, "replace the token; it may be expired or revoked")
    if status == 403:
        return _final("hub_forbidden", f"{asked.host} denies access to {asked.repo} ({sent})", asked.get_access())
    if status == 429:
        return _rate_limit(error.response, asked)
    if status >= 500 or status == 408:
        return _passing("hub_unavailable", f"{asked.host} answered {status} for {asked.repo}", TRY_LATER, error)
    message = f"{asked.host} answered {status} for {asked.repo} ({sent})"
    return _final("hub_refused", message, "check hub.endpoint, the repository and the revision")


def _approval(asked: Asked) -> str:
    page = f"{asked.address}/{asked.repo}"
    if asked.token:
        return f"ask for access at {page} with the account of that token; a fine-grained token needs gated access too"
    return f"ask for access at {page}, then set hub.token_file, or HF_TOKEN in the environment of llmgwd"


def _rate_limit(response: httpx2.Response, asked: Asked) -> Trouble:
    wait_s = _retry_after_s(response)
    when = f"; it asks to wait {wait_s:.0f} s" if wait_s is not None else ""
    message = f"{asked.host} limits requests (429, {asked.with_token()}){when}"
    hint = (
        TRY_LATER if asked.token else "a token has a higher limit: set hub.token_file or HF_TOKEN; or try again later"
    )
    return Trouble(LlmgwError("hub_rate_limited", message, hint=hint), may_pass=True, retry_after_s=wait_s)


def _retry_after_s(response: httpx2.Response) -> float | None:
    limits = parse_ratelimit_headers(response.headers)
    if limits is not None and limits.remaining == 0:
        return float(limits.reset_in_seconds)
    asked = response.headers.get("Retry-After", "").strip()
    return float(asked) if asked.isdecimal() else None


def _is_from_hub(response: httpx2.Response, asked: Asked) -> bool:
    return response.url.netloc == httpx2.URL(asked.endpoint).netloc


def _final(code: str, message: str, hint: str) -> Trouble:
    return Trouble(LlmgwError(code, message, hint=hint))


def _passing(code: str, message: str, hint: str, refusal: HfHubHTTPError | None = None) -> Trouble:
    wait_s = _retry_after_s(refusal.response) if refusal is not None else None
    return Trouble(LlmgwError(code, message, hint=hint), may_pass=True, retry_after_s=wait_s)
