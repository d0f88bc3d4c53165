"""Every trouble with the hub in the words that people get, compared with the snapshot beside this file.

`python -m tests.weights.test_hub_messages` writes the snapshot anew; read what changed before committing it.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.weights.fetch import fetch
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.patience import Patience
from llmgwd.weights.token import TokenSource
from tests.support.local_hub import Fault, LocalHub

SNAPSHOT = Path(__file__).with_name("hub_messages.txt")
REPO, FILE, SECRET = "org/model", "m-Q4_K_M.gguf", "hf_aVerySecretToken"
OF_LIST, OF_FILE = "/api/*", "/org/*"

Prepare = Callable[[LocalHub], None]


def access(kind: str) -> Prepare:
    return lambda remote: remote.require_token(REPO, "hf_other", kind=kind)  # type: ignore[arg-type]


def fault(happens: Fault) -> Prepare:
    return lambda remote: remote.faults.add(happens)


TROUBLES: dict[str, tuple[Prepare, str, str | None]] = {
    "401": (fault(Fault(OF_LIST, status=401, times=None)), REPO, None),
    "403": (fault(Fault(OF_LIST, status=403, times=None)), REPO, None),
    "403 gated": (access("gated"), REPO, None),
    "404 repository": (lambda remote: None, "org/modle", None),
    "404 private repository": (access("private"), REPO, None),
    "404 revision": (lambda remote: None, REPO, "v9"),
    "404 file": (fault(Fault(OF_FILE, status=404, headers={"X-Error-Code": "EntryNotFound"}, times=None)), REPO, None),
    "429 until it gives up": (fault(Fault.rate_limited(OF_LIST, seconds=0, times=None)), REPO, None),
    "429 with too long a wait": (fault(Fault.rate_limited(OF_LIST, seconds=900, times=None)), REPO, None),
    "503": (fault(Fault(OF_LIST, status=503, times=None)), REPO, None),
    "503 of the storage": (fault(Fault("/cdn/*", status=503, times=None)), REPO, None),
    "dropped connection": (fault(Fault(OF_LIST, drop=True, times=None)), REPO, None),
    "dropped connection within a file": (fault(Fault("/cdn/*", drop_after=3, times=None)), REPO, None),
    "page of a proxy": (fault(Fault.html_page(OF_LIST, times=None)), REPO, None),
    "page of a proxy for a file": (fault(Fault.html_page("/cdn/*", times=None)), REPO, None),
    "no network": (lambda remote: remote.close(), REPO, None),
    "damaged file": (fault(Fault("/cdn/*", flip_byte_at=0, times=None)), REPO, None),
    "offline": (lambda remote: None, REPO, None),
    "name": (lambda remote: None, "org/model/main", None),
}


def told(trouble: str, folder: Path, *, with_token: bool) -> str:
    """The notices of retries, the message and the hint."""
    prepare, repo, revision = TROUBLES[trouble]
    token = folder / "token"
    if with_token:
        token.write_text(SECRET)
    lines: list[str] = []
    with LocalHub(folder / "hub") as remote:
        source = TokenSource(token) if with_token else None
        hub = Hub(remote.endpoint, source, patience=Patience(attempts=2, first_wait_s=0.0))
        remote.commit(REPO, {FILE: b"weights"})
        prepare(remote)
        with patch("huggingface_hub.constants.HF_HUB_OFFLINE", trouble == "offline"):
            try:
                snapshot = hub.snapshot(repo, revision, notice=lambda line: lines.append(f"notice:  {line}"))
                notice: Callable[[str], None] = lambda line: lines.append(f"notice:  {line}")  # noqa: E731
                fetch(hub, snapshot, snapshot.files, Library(folder / "weights"), notice=notice)
            except LlmgwError as error:
                lines += [f"message: {error.message}", f"hint:    {error.hint}"]
        said = "\n".join(lines)
        return said.replace(remote.endpoint.removeprefix("http://"), "hub.test").replace(str(token), "/etc/llmgw/token")


def written(folder: Path) -> str:
    parts = []
    for trouble in TROUBLES:
        said = {}
        for with_token in (False, True):
            own = folder / f"{trouble}-{with_token}"
            own.mkdir(parents=True)
            said[with_token] = told(trouble, own, with_token=with_token)
        parts.append(f"# {trouble}\n{said[False]}")
        if said[True] != said[False]:
            parts.append(f"# {trouble}, with a token\n{said[True]}")
    return "\n\n".join(parts) + "\n"


def by_title(text: str) -> dict[str, str]:
    return {title: said.strip() for title, _, said in (part.partition("\n") for part in text.split("# ")[1:])}


def test_every_trouble_is_told_as_in_the_snapshot(tmp_path: Path) -> None:
    now = written(tmp_path)
    assert by_title(now) == by_title(SNAPSHOT.read_text())
    assert SECRET not in now


@pytest.mark.parametrize("title", by_title(SNAPSHOT.read_text()) if SNAPSHOT.exists() else [])
def test_every_message_says_what_to_do_next(title: str) -> None:
    said = by_title(SNAPSHOT.read_text())[title]
    assert "message: " in said
    assert len(said.partition("hint:    ")[2]) > 10


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        SNAPSHOT.write_text(written(Path(folder)))
    sys.exit(0)
