"""One file's content on its way: what is appended, what is thrown away, and how it is left."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from llmgwd.domain.files import RepoFile, Snapshot
from llmgwd.weights.download import Download
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.progress import Cancelled, ignore_notice
from llmgwd.weights.troubles import Asked
from tests.weights.conftest import IMPATIENT

REPO = "org/model"
FILE = RepoFile("m-Q4_K_M.gguf", 8 << 20, sha256="a" * 64)
SNAPSHOT = Snapshot(REPO, "b" * 40, (FILE,))

Open = Callable[[int], Iterator[bytes]]
"""Gives the chunks of a body from an offset on."""


class ScriptedHub(Hub):
    """A hub whose bodies come from a function; `opened` are the offsets that were asked for."""

    def __init__(self, open_body: Open) -> None:
        super().__init__("http://hub.test", patience=IMPATIENT)
        self.opened: list[int] = []
        self._open_body = open_body

    @contextmanager
    def open_file(self, asked: Asked, file: RepoFile, offset: int, *, by_xet: bool = True) -> Iterator["ScriptedBody"]:
        self.opened.append(offset)
        yield ScriptedBody(self._open_body(offset), offset)


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
