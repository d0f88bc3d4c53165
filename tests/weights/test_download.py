"""One file's content on its way: what is appended, what is thrown away, and how it is left."""

import gzip
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx2
import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile, Snapshot
from llmgwd.weights import hub as hub_module
from llmgwd.weights.download import PROGRESS_BYTES, Download
from llmgwd.weights.fetch import fetch
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.progress import NEVER, Cancelled, ignore_notice
from llmgwd.weights.troubles import Asked
from tests.support.local_hub import Fault, LocalHub
from tests.weights.conftest import IMPATIENT

REPO = "org/model"
PARTS = 2 * IMPATIENT.attempts
CONTENT = os.urandom(PARTS * PROGRESS_BYTES)
FILE = RepoFile("m-Q4_K_M.gguf", len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())
SNAPSHOT = Snapshot(REPO, "b" * 40, (FILE,))

Open = Callable[[int], Iterator[bytes]]
"""Gives the chunks of a body from an offset on."""


class ScriptedHub(Hub):
    """A hub whose bodies come from a function; `opened` are the offsets that were asked for."""

    def __init__(self, open_body: Open, *, has_ranges: bool = True) -> None:
        super().__init__("http://hub.test", patience=IMPATIENT)
        self.opened: list[int] = []
        self._open_body = open_body
        self._has_ranges = has_ranges

    @contextmanager
    def open_file(self, asked: Asked, file: RepoFile, offset: int, *, by_xet: bool = True) -> Iterator["ScriptedBody"]:
        self.opened.append(offset)
        start = offset if self._has_ranges else 0
        yield ScriptedBody(self._open_body(start), start)


class ScriptedBody:
    host = "cdn.test"

    def __init__(self, chunks: Iterator[bytes], start: int) -> None:
        self.start: int | None = start
        self._chunks = chunks

    def chunks(self) -> Iterator[bytes]:
        return self._chunks

    def interrupt(self) -> None:
        pass


def download(hub: Hub, library: Library) -> Download:
    library.make()
    return Download(hub, SNAPSHOT, FILE, library.layout, ignore_notice)


def drops_after(size_bytes: int) -> Open:
    def open_body(offset: int) -> Iterator[bytes]:
        yield CONTENT[offset : offset + size_bytes]
        if offset + size_bytes < len(CONTENT):
            raise httpx2.ReadError("dropped")

    return open_body


def test_a_connection_that_drops_with_progress_is_gone_on_with_however_often(library: Library) -> None:
    hub = ScriptedHub(drops_after(PROGRESS_BYTES))
    download(hub, library).run(NEVER)
    assert library.layout.content_of(FILE).read_bytes() == CONTENT
    assert hub.opened == [part * PROGRESS_BYTES for part in range(PARTS)]


def test_a_connection_that_brings_a_little_and_drops_is_given_up(library: Library) -> None:
    hub = ScriptedHub(drops_after(PROGRESS_BYTES - 1))
    with pytest.raises(LlmgwError) as error:
        download(hub, library).run(NEVER)
    assert error.value.code == "hub_dropped"
    assert len(hub.opened) == IMPATIENT.attempts


def test_bytes_that_come_again_are_no_progress(library: Library) -> None:
    """A server without ranges sends the file from its start, and drops now later, now earlier."""
    sizes = iter([6 << 20, 3 << 20] * 20)
    hub = ScriptedHub(lambda offset: drops_after(next(sizes))(offset), has_ranges=False)
    with pytest.raises(LlmgwError) as error:
        download(hub, library).run(NEVER)
    assert error.value.code == "hub_dropped"
    assert len(hub.opened) == IMPATIENT.attempts


def test_an_answer_that_ends_early_without_a_word_is_a_failure(library: Library) -> None:
    hub = ScriptedHub(lambda offset: iter([CONTENT[offset : offset + 1]]))
    with pytest.raises(LlmgwError, match=f"{FILE.path} ended at {IMPATIENT.attempts} of {len(CONTENT)}") as error:
        download(hub, library).run(NEVER)
    assert error.value.code == "hub_unexpected_answer"
    assert len(hub.opened) == IMPATIENT.attempts


def test_an_answer_that_does_not_end_is_left_once_it_is_longer_than_listed(library: Library) -> None:
    def open_body(offset: int) -> Iterator[bytes]:
        yield CONTENT
        yield b"x"
        pytest.fail("more was read than the file has")

    hub = ScriptedHub(open_body)
    with pytest.raises(LlmgwError, match=f"{FILE.path} is longer than its {len(CONTENT)} bytes") as error:
        download(hub, library).run(NEVER)
    assert error.value.code == "hub_unexpected_answer"
    assert library.layout.partial_of(FILE).stat().st_size == 0
    assert hub.opened == [0] * IMPATIENT.attempts


def test_a_partial_that_is_larger_than_the_file_is_begun_anew(library: Library) -> None:
    hub = ScriptedHub(drops_after(len(CONTENT)))
    library.make()
    library.layout.partial_of(FILE).write_bytes(CONTENT + b"x")
    download(hub, library).run(NEVER)
    assert library.layout.content_of(FILE).read_bytes() == CONTENT
    assert hub.opened == [0]


def test_a_content_is_on_disk_whole_before_it_gets_its_name(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[int, bool]] = []

    def fsync(handle: int) -> None:
        synced.append((os.fstat(handle).st_size, library.layout.content_of(FILE).exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    download(ScriptedHub(drops_after(len(CONTENT))), library).run(NEVER)
    assert synced == [(len(CONTENT), False)]


def test_a_range_that_was_not_asked_for_is_not_appended(remote: LocalHub, hub: Hub, library: Library) -> None:
    remote.commit(REPO, {FILE.path: b"weights"})
    snapshot, notices = hub.snapshot(REPO), list[str]()
    (file,) = snapshot.files
    library.make()
    library.layout.partial_of(file).write_bytes(b"wei")
    remote.faults.add(Fault("/cdn/*", headers={"Content-Range": "bytes 2-5/7"}))
    folder = fetch(hub, snapshot, snapshot.files, library, notice=notices.append)
    assert (folder / file.path).read_bytes() == b"weights"
    (notice,) = notices
    assert f"asked for {file.path} from byte 3, it sent bytes 2-5/7" in notice
    assert [request.range for request in remote.requests.matching("/cdn/*")] == ["bytes=3-"] * 2


def test_a_body_is_asked_for_as_it_is_and_taken_compressed_where_it_comes_so(
    remote: LocalHub, hub: Hub, library: Library
) -> None:
    config = b'{"vocab_size": 32000}' * 20
    remote.commit(REPO, {"config.json": config})
    headers = {"Content-Encoding": "gzip"}
    remote.faults.add(Fault("/org/*", status=200, headers=headers, body=gzip.compress(config), times=None))
    snapshot = hub.snapshot(REPO)
    assert (fetch(hub, snapshot, snapshot.files, library) / "config.json").read_bytes() == config
    (request,) = remote.requests.matching("/org/*")
    assert request.accept_encoding == "identity"


def test_a_body_whose_length_is_not_announced_is_taken() -> None:
    answer = httpx2.Response(200, content=iter([b"we", b"ights"]), request=httpx2.Request("GET", "http://cdn.test/x"))
    assert "Content-Length" not in answer.headers
    body = hub_module._http_body(answer, FILE, 0)
    assert (body.start, body.host, b"".join(body.chunks())) == (0, "cdn.test", b"weights")


def test_a_cancel_that_comes_while_the_body_is_opened_does_not_wait_for_its_first_byte(library: Library) -> None:
    cancelled = threading.Event()
    asked_for_a_byte = threading.Event()

    def open_body(offset: int) -> Iterator[bytes]:
        cancelled.set()
        coming.interrupt()  # too early: nobody has the body yet

        def chunks() -> Iterator[bytes]:
            asked_for_a_byte.set()
            yield b""

        return chunks()

    coming = download(ScriptedHub(open_body), library)
    with pytest.raises(Cancelled):
        coming.run(cancelled)
    assert not asked_for_a_byte.is_set()
