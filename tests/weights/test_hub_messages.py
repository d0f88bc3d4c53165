"""Every trouble with the hub in the words that people get, compared with the snapshot beside this file.

`python -m tests.weights.test_hub_messages` writes the snapshot anew; read what changed before committing it.
"""

import re
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import httpx2
import pytest
from huggingface_hub.errors import DisabledRepoError

from llmgwd.domain.errors import LlmgwError
from llmgwd.weights.fetch import fetch
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.patience import Patience
from llmgwd.weights.token import Token, TokenSource
from llmgwd.weights.troubles import Asked, trouble
from tests.support.local_hub import Fault, LocalHub

SNAPSHOT = Path(__file__).with_name("hub_messages.txt")
REPO, FILE, SECRET = "org/model", "m-Q4_K_M.gguf", "hf_aVerySecretToken"
OF_LIST, OF_FILE = "/api/*", "/org/*"

Prepare = Callable[[LocalHub], None]


def access(kind: str) -> Prepare:
    return lambda remote: remote.require_token(REPO, "hf_other", kind=kind)  # type: ignore[arg-type]


def fault(*happen: Fault) -> Prepare:
    def prepare(remote: LocalHub) -> None:
        for each in happen:
            remote.faults.add(each)

    return prepare


def nothing(remote: LocalHub) -> None:
    """The trouble is in what is asked for, or in how."""


def silent_xet(remote: LocalHub) -> None:
    """Storage that does not answer, and then none by plain HTTP either."""
    remote.offer_xet()
    assert remote.store.xet is not None
    remote.store.xet.endpoint = STORAGE_THAT_IS_DOWN
    remote.faults.add(Fault("/cdn/*", drop=True, times=None))


STORAGE_THAT_IS_DOWN = "http://localhost:1"
TO_STORAGE_THAT_IS_DOWN = Fault(OF_FILE, status=302, headers={"Location": f"{STORAGE_THAT_IS_DOWN}/x"}, times=None)
ENTRY_NOT_FOUND = Fault(OF_FILE, status=404, headers={"X-Error-Code": "EntryNotFound"}, times=None)

TROUBLES: dict[str, tuple[Prepare, str, str | None]] = {
    "401": (fault(Fault(OF_LIST, status=401, times=None)), REPO, None),
    "403": (fault(Fault(OF_LIST, status=403, times=None)), REPO, None),
    "403 gated": (access("gated"), REPO, None),
    "403 of the storage": (fault(Fault("/cdn/*", status=403, times=None)), REPO, None),
    "404 repository": (nothing, "org/modle", None),
    "404 private repository": (access("private"), REPO, None),
    "404 revision": (nothing, REPO, "v9"),
    "404 file": (fault(ENTRY_NOT_FOUND), REPO, None),
    "418": (fault(Fault(OF_LIST, status=418, times=None)), REPO, None),
    "429 until it gives up": (fault(Fault.rate_limited(OF_LIST, seconds=0, times=None)), REPO, None),
    "429 with too long a wait": (fault(Fault.rate_limited(OF_LIST, seconds=900, times=None)), REPO, None),
    "429 of the storage": (fault(Fault.rate_limited("/cdn/*", seconds=900, times=None)), REPO, None),
    "503": (fault(Fault(OF_LIST, status=503, times=None)), REPO, None),
    "503 for a file": (fault(Fault(OF_FILE, status=503, times=None)), REPO, None),
    "503 of the storage": (fault(Fault("/cdn/*", status=503, times=None)), REPO, None),
    "dropped connection": (fault(Fault(OF_LIST, drop=True, times=None)), REPO, None),
    "dropped connection of the storage": (fault(Fault("/cdn/*", drop=True, times=None)), REPO, None),
    "dropped connection within a file": (fault(Fault("/cdn/*", drop_after=3, times=None)), REPO, None),
    "no answer in time": (fault(Fault(OF_LIST, hang=True, times=None)), REPO, None),
    "no answer in time of the storage": (fault(Fault("/cdn/*", hang=True, times=None)), REPO, None),
    "page of a proxy": (fault(Fault.html_page(OF_LIST, times=None)), REPO, None),
    "page of a proxy for a file": (fault(Fault.html_page(OF_FILE, times=None)), REPO, None),
    "page of a proxy in the place of the storage": (fault(Fault.html_page("/cdn/*", times=None)), REPO, None),
    "file that is shorter": (fault(Fault("/cdn/*", status=416, times=None)), REPO, None),
    "no network": (lambda remote: remote.close(), REPO, None),
    "no network to the storage": (fault(TO_STORAGE_THAT_IS_DOWN), REPO, None),
    "no network to xet storage": (silent_xet, REPO, None),
    "damaged file": (fault(Fault("/cdn/*", flip_byte_at=0, times=None)), REPO, None),
    "offline": (nothing, REPO, None),
    "name": (nothing, "org/model/main", None),
}


def disabled() -> DisabledRepoError:
    request = httpx2.Request("GET", "http://hub.test/api/models/org/model")
    return DisabledRepoError("disabled", response=httpx2.Response(403, request=request))


def at_storage(error: httpx2.RequestError) -> httpx2.RequestError:
    error.request = httpx2.Request("GET", "http://cdn.test/x?X-Amz-Signature=5")
    return error


RAISED: dict[str, Callable[[], Exception]] = {
    "disabled repository": disabled,
    "no certificate": lambda: httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"),
    "no certificate of the storage": lambda: at_storage(httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED]")),
    "proxy that does not connect": lambda: httpx2.ProxyError("407 Proxy Authentication Required"),
    "no connection in time": lambda: at_storage(httpx2.ConnectTimeout("timed out")),
    "request that cannot be sent": lambda: httpx2.LocalProtocolError(f"Illegal header value b'Bearer {SECRET}'"),
    "endpoint that is no address": lambda: httpx2.UnsupportedProtocol("missing protocol"),
}
"""What cannot be brought about here, as the client raises it."""


def told(title: str, folder: Path, *, with_token: bool) -> str:
    """The notices of retries, the message and the hint."""
    if title in RAISED:
        asked = Asked("http://hub.test", REPO, token=Token(SECRET, "/etc/llmgw/token") if with_token else None)
        error = trouble(RAISED[title](), asked).error
        return f"message: {error.message}\nhint:    {error.hint}"
    prepare, repo, revision = TROUBLES[title]
    token = folder / "token"
    if with_token:
        token.write_text(SECRET)
    lines: list[str] = []
    with LocalHub(folder / "hub") as remote, ExitStack() as patches:
        source = TokenSource(token) if with_token else None
        hub = Hub(remote.endpoint, source, patience=Patience(attempts=2, first_wait_s=0.0))
        remote.commit(REPO, {FILE: b"weights"})
        prepare(remote)
        patches.enter_context(patch("huggingface_hub.constants.HF_HUB_OFFLINE", title == "offline"))
        patches.enter_context(patch("llmgwd.weights.xet.STALL_S", 0.1))
        if "in time" in title:
            patches.enter_context(patch("llmgwd.weights.hub.API_TIMEOUT_S", 0.2))
            patches.enter_context(patch("llmgwd.weights.hub.BODY_TIMEOUT", httpx2.Timeout(10.0, read=0.2)))
        try:
            snapshot = hub.snapshot(repo, revision, notice=lambda line: lines.append(f"notice:  {line}"))
            notice: Callable[[str], None] = lambda line: lines.append(f"notice:  {line}")  # noqa: E731
            fetch(hub, snapshot, snapshot.files, Library(folder / "weights"), notice=notice)
        except LlmgwError as error:
            lines += [f"message: {error.message}", f"hint:    {error.hint}"]
        port = remote.endpoint.rpartition(":")[2]
        said = "\n".join(lines)
        for name, shown in (
            (f"127.0.0.1:{port}", "hub.test"),
            (f"localhost:{port}", "cdn.test"),
            (str(token), "/etc/llmgw/token"),
        ):
            said = said.replace(name, shown)
        return said


def written(folder: Path) -> str:
    parts = []
    for title in (*TROUBLES, *RAISED):
        said = {}
        for with_token in (False, True):
            own = folder / f"{title}-{with_token}"
            own.mkdir(parents=True)
            said[with_token] = told(title, own, with_token=with_token)
        parts.append(f"# {title}\n{said[False]}")
        if said[True] != said[False]:
            parts.append(f"# {title}, with a token\n{said[True]}")
    return "\n\n".join(parts) + "\n"


def by_title(text: str) -> dict[str, str]:
    return {title: said.strip() for title, _, said in (part.partition("\n") for part in text.split("# ")[1:])}


NOT_ASKED = ("offline", "name", "damaged file", "damaged file, with a token")


def test_every_trouble_is_told_as_in_the_snapshot(tmp_path: Path) -> None:
    now = written(tmp_path)
    assert by_title(now) == by_title(SNAPSHOT.read_text())
    assert SECRET not in now


@pytest.mark.parametrize("title", by_title(SNAPSHOT.read_text()) if SNAPSHOT.exists() else [])
def test_every_message_says_what_to_do_next(title: str) -> None:
    said = by_title(SNAPSHOT.read_text())[title]
    assert "message: " in said
    assert len(said.partition("hint:    ")[2]) > 10


@pytest.mark.parametrize("title", [title for title in by_title(SNAPSHOT.read_text()) if title not in NOT_ASKED])
def test_every_message_names_the_host_and_says_whether_a_token_was_sent(title: str) -> None:
    for line in by_title(SNAPSHOT.read_text())[title].splitlines():
        says = re.search(r"no token was sent|the token from /etc/llmgw/token was (not )?sent", line)
        if not line.startswith("hint:") and "wrong content" not in line:  # there the hint says it
            assert says and re.search(r"hub\.test|cdn\.test|localhost:1", line), line


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        SNAPSHOT.write_text(written(Path(folder)))
    sys.exit(0)
