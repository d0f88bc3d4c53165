"""What chosen files say about their model: from disk where they are there, else from the start of the hub's."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile, Snapshot
from llmgwd.domain.traits import Traits
from llmgwd.weights import folder_traits, gguf_header
from llmgwd.weights.choice import entry_file
from llmgwd.weights.hub import Hub
from llmgwd.weights.layout import Layout
from llmgwd.weights.progress import CancelFlag, check
from llmgwd.weights.small_files import read_small
from llmgwd.weights.troubles import FAILURES


def traits_in(folder: Path, files: Iterable[RepoFile]) -> Traits | None:
    """Of files that are on disk. None when they do not say, or cannot be read."""
    files = tuple(files)
    entry = entry_file(file.path for file in files)
    try:
        if entry is None:
            return folder_traits.read_traits(files, lambda file: (folder / file.path).read_bytes())
        with (folder / entry).open("rb") as start:
            return gguf_header.read_traits(start.read)
    except OSError:
        return None


def coming_traits(
    hub: Hub, layout: Layout, revision: Snapshot, files: Iterable[RepoFile], cancelled: CancelFlag
) -> Traits | None:
    """Of files of which some may not be fetched yet: a few MB of the first are read, once, and not kept.

    None when they do not say or the hub does not give them: what else changed can be told without. Raises Cancelled.
    """
    files = tuple(files)
    by_path = {file.path: file for file in files}
    entry = entry_file(by_path)
    try:
        if entry is None:
            return folder_traits.read_traits(files, partial(read_small, hub, layout, revision, cancelled=cancelled))
        content = layout.content_of(by_path[entry])
        if content.exists():
            with content.open("rb") as start:
                return gguf_header.read_traits(start.read)
        with hub.open_file(hub.asked(revision.repo, revision.sha, entry), by_path[entry], 0, by_xet=False) as body:
            return gguf_header.read_traits(_Start(body.chunks(), cancelled).read)
    except (*FAILURES, LlmgwError, OSError):
        check(cancelled)
        return None


class _Start:
    """Reads from chunks as they come."""

    def __init__(self, chunks: Iterable[bytes], cancelled: CancelFlag) -> None:
        self._chunks = iter(chunks)
        self._cancelled = cancelled
        self._buffer = memoryview(b"")

    def read(self, count: int) -> bytes:
        if count <= len(self._buffer):
            taken, self._buffer = bytes(self._buffer[:count]), self._buffer[count:]
            return taken
        parts, missing = [bytes(self._buffer)], count - len(self._buffer)
        self._buffer = memoryview(b"")
        for chunk in self._chunks:
            check(self._cancelled)
            parts.append(chunk[:missing])
            if len(chunk) >= missing:
                self._buffer = memoryview(chunk)[missing:]
                break
            missing -= len(chunk)
        return b"".join(parts)
