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


class _AnswerError(Exception):
    """host is what answered, with its port; None for the hub itself."""

    def __init__(self, message: str, host: str | None = None) -> None:
        super().__init__(message)
        self.host = host


class UnexpectedAnswerError(_AnswerError):
    """Something other than the hub answered in its place, or it sent what it had not announced."""


class XetError(_AnswerError):
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

    @property
    def subject(self) -> str:
        return self.repo if self.path is None else f"{self.path} of {self.repo}"

    def is_hub(self, host: str) -> bool:
        return host in (self.host, host_of(self.endpoint))

    def named(self, host: str) -> str:
        """A host that took part, for people: the hub, or one that it redirected to."""
        return host if self.is_hub(host) else f"{host} ({self.host} points there)"

    def with_token(self, host: str | None = None, *, was_reached: bool = True) -> str:
        """Whether host (None: the hub) got the token: no other than the hub ever does."""
        if self.token is None:
            return "no token was sent"
        if host is not None and not self.is_hub(host):
            return f"the token from {self.token.source} was sent to {self.host} only"
        return f"the token from {self.token.source} was {'' if was_reached else 'not '}sent"

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


def host_of(address: str | httpx2.URL) -> str:
    """With its port, without user and password; all of what is no address of a host."""
    try:
        return httpx2.URL(address).netloc.decode() or str(address)
    except httpx2.InvalidURL:
        return str(address)


def _host_in(error: Exception, asked: Asked) -> str:
    """The host that the error is about: at the end of redirects another than the hub."""
    if isinstance(error, httpx2.RequestError):
        try:
            return host_of(error.request.url)
        except RuntimeError:  # it came before there was a request
            return asked.host
    return (error.host if isinstance(error, _AnswerError) else None) or asked.host


def _trouble(error: Exception, asked: Asked) -> Trouble:
    host = _host_in(error, asked)
    who, sent, is_hub = asked.named(host), asked.with_token(host), asked.is_hub(host)
    not_sent = asked.with_token(host, was_reached=False)
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
            expected = "a hub" if is_hub else "the storage of a hub"
            hint = f"check {'hub.endpoint and ' if is_hub else ''}the proxy between here and there"
            return _passing("hub_unexpected_answer", f"{who} did not answer like {expected}: {error} ({sent})", hint)
        case XetError():
            message = f"the xet storage {who} did not give {asked.subject}: {error} ({sent})"
            return _passing("hub_storage", message, TRY_LATER)
        case httpx2.TimeoutException():
            is_late = isinstance(error, httpx2.ReadTimeout | httpx2.WriteTimeout)
            return _passing("hub_timeout", f"{who} did not answer in time ({sent if is_late else not_sent})", TRY_LATER)
        case httpx2.ConnectError() if isinstance(error.__context__, ssl.SSLError) or "CERTIFICATE" in str(error):
            message = f"{who} has no certificate that is trusted here: {error} ({not_sent})"
            hint = "check the clock, and SSL_CERT_FILE if a proxy has a certificate of its own"
            return _final("hub_certificate", message, hint)
        case httpx2.ConnectError() | httpx2.ProxyError():
            way = "hub.endpoint" if is_hub else f"the firewall's rule for {host}"
            hint = f"check the network, {way} and the proxy variables; models that are served are not affected"
            return _passing("hub_unreachable", f"cannot connect to {who}: {error} ({not_sent})", hint)
        case httpx2.LocalProtocolError():  # its text quotes the header that it refuses, which may be the token's
            hint = "check the token and hub.endpoint for characters that do not belong there"
            return _final("hub_request", f"a request to {who} cannot be sent as it is ({not_sent})", hint)
        case httpx2.UnsupportedProtocol() | httpx2.InvalidURL():
            message = f"{asked.address} is not the address of a hub ({not_sent})"
            return _final("hub_endpoint", message, "correct hub.endpoint")
        case _:
            message = f"the connection to {who} was lost: {str(error).rstrip('.')} ({sent})"
            return _passing("hub_dropped", message, TRY_LATER)


def _refusal(error: HfHubHTTPError, asked: Asked) -> Trouble:
    status, host = error.response.status_code, host_of(error.response.url)
    sent = asked.with_token(host)
    match error:
        case GatedRepoError():
            message = f"{asked.host} gives the files of {asked.repo} to approved accounts only: it is gated ({sent})"
            return _final("hub_gated", message, _approval(asked))
        case RepositoryNotFoundError():
            message = f"{asked.host} has no repository {asked.repo}, or hides it ({sent})"
            return _final("hub_no_repository", message, f"check the name; if it is private, {asked.get_access()}")
        case RevisionNotFoundError():
            message = f"{asked.host} has no revision {asked.revision} of {asked.repo} ({sent})"
            return _final("hub_no_revision", message, "name a branch, a tag or a commit of it")
        case RemoteEntryNotFoundError():
            message = f"{asked.host} has no file {asked.subject} at {(asked.revision or 'main')[:12]} ({sent})"
            return _final("hub_no_file", message, "the listing names it, so the revision may be damaged; try another")
        case DisabledRepoError():
            message = f"{asked.host} has disabled {asked.repo} ({sent})"
            return _final("hub_disabled", message, "use another repository")
    if not asked.is_hub(host):
        message = f"{asked.named(host)} answered {status} for {asked.subject} ({sent}){_wait_asked_for(error.response)}"
        return _passing("hub_storage", message, TRY_LATER, error)
    if status == 401:
        if asked.token is None:
            return _final("hub_token_refused", f"{asked.host} asks for a token ({sent})", asked.get_access())
        message = f"{asked.host} does not accept the token ({sent})"
        return _final("hub_token_refused", message, "replace the token; it may be expired or revoked")
    if status == 403:
        return _final("hub_forbidden", f"{asked.host} denies access to {asked.repo} ({sent})", asked.get_access())
    if status == 429:
        return _rate_limit(error, asked)
    message = f"{asked.host} answered {status} for {asked.subject} ({sent})"
    if status >= 500 or status == 408:
        return _passing("hub_unavailable", message, TRY_LATER, error)
    return _final("hub_refused", message, "check hub.endpoint, the repository and the revision")


def _approval(asked: Asked) -> str:
    page = f"{asked.address}/{asked.repo}"
    if asked.token:
        return f"ask for access at {page} with the account of that token; a fine-grained token needs gated access too"
    return f"ask for access at {page}, then set hub.token_file, or HF_TOKEN in the environment of llmgwd"


def _rate_limit(error: HfHubHTTPError, asked: Asked) -> Trouble:
    message = f"{asked.host} limits requests (429, {asked.with_token()}){_wait_asked_for(error.response)}"
    hint = (
        TRY_LATER if asked.token else "a token has a higher limit: set hub.token_file or HF_TOKEN; or try again later"
    )
    return _passing("hub_rate_limited", message, hint, error)


def _wait_asked_for(response: httpx2.Response) -> str:
    wait_s = _retry_after_s(response)
    return f"; it asks to wait {wait_s:.0f} s" if wait_s is not None else ""


def _retry_after_s(response: httpx2.Response) -> float | None:
    limits = parse_ratelimit_headers(response.headers)
    if limits is not None and limits.remaining == 0:
        return float(limits.reset_in_seconds)
    asked = response.headers.get("Retry-After", "").strip()
    return float(asked) if asked.isdecimal() else None


def _final(code: str, message: str, hint: str) -> Trouble:
    return Trouble(LlmgwError(code, message, hint=hint))


def _passing(code: str, message: str, hint: str, refusal: HfHubHTTPError | None = None) -> Trouble:
    wait_s = _retry_after_s(refusal.response) if refusal is not None else None
    return Trouble(LlmgwError(code, message, hint=hint), may_pass=True, retry_after_s=wait_s)
