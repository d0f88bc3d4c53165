"""Where an engine that somebody else runs is reached."""

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from llmgwd.domain.errors import unusable

PORTS = {"http": 80, "https": 443}
NAME_OR_ADDRESS = re.compile(r"[A-Za-z0-9_.-]+|[0-9A-Fa-f:.]+")


class Place(NamedTuple):
    """Host, port, and whether TLS is spoken there."""

    host: str
    port: int
    tls: bool = False

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def place_of(url: str) -> Place:
    """Raises LlmgwError for anything but `http://HOST[:PORT]` or `https://…`, with or without `/v1` behind it."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _unusable(url, str(error)) from error
    if parts.scheme not in PORTS:
        raise _unusable(url, "it is neither http:// nor https://")
    if "@" in parts.netloc:
        # Not quoted: it is a secret that was put in the wrong place.
        raise unusable("bad_url", "a URL with a user or password is not taken", hint="give a key with --key-file FILE")
    if not NAME_OR_ADDRESS.fullmatch(host) or port == 0:
        raise _unusable(url, "it names no host")
    if parts.path.rstrip("/") not in ("", "/v1") or parts.query or parts.fragment:
        raise _unusable(url, "the gateway keeps the path that a client asked for, so none but /v1 can be behind it")
    return Place(host, port or PORTS[parts.scheme], parts.scheme == "https")


def _unusable(url: str, why: str) -> Exception:
    return unusable("bad_url", f"{url} cannot be used: {why}", hint="write it as http://HOST:PORT or https://HOST")
