"""What a file's content must hash to, and hashing it."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from llmgwd.domain.files import RepoFile
from llmgwd.weights.progress import CancelFlag, check

PIECE_BYTES = 1 << 20


class Digest(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def expected_digest(file: RepoFile) -> str:
    """In hex: the sha256 of a large file, the git blob id of a small one."""
    return file.sha256 or file.blob_id


def new_digest(file: RepoFile) -> Digest:
    """Fed with the whole content of the file, it must come to `expected_digest`."""
    if file.sha256 is not None:
        return hashlib.sha256()
    head = b"blob %d\0" % file.size_bytes
    if len(file.blob_id) == 64:  # a repository whose object format is sha256
        return hashlib.sha256(head)
    return hashlib.sha1(head, usedforsecurity=False)


def feed(digest: Digest, path: Path, cancelled: CancelFlag, report: Callable[[int], None] | None = None) -> int:
    """Feeds the file at path to digest and returns its size; report is called with the bytes so far.

    Raises Cancelled or OSError.
    """
    total, piece = 0, memoryview(bytearray(PIECE_BYTES))
    with path.open("rb", buffering=0) as source:
        while count := source.readinto(piece):
            check(cancelled)
            digest.update(piece[:count])
            total += count
            if report is not None:
                report(total)
    return total
