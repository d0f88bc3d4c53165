"""A content that is still growing on disk, and its hash so far."""

import os
from pathlib import Path
from typing import BinaryIO

from llmgwd.domain.files import RepoFile
from llmgwd.weights.content import feed, new_digest
from llmgwd.weights.progress import CancelFlag


class Partial:
    """Owned by whoever holds the lock on the open file. size_bytes and digest always agree with what was appended."""

    def __init__(self, file: RepoFile, path: Path, handle: BinaryIO, cancelled: CancelFlag) -> None:
        """Hashes what an earlier fetch left. Raises Cancelled or OSError."""
        self._file = file
        self._path = path
        self._handle = handle
        self._digest = new_digest(file)
        self.size_bytes = feed(self._digest, path, cancelled)
        if self.size_bytes > file.size_bytes:
            self.start_over()
        handle.seek(self.size_bytes)

    @property
    def is_complete(self) -> bool:
        return self.size_bytes == self._file.size_bytes

    def digest(self) -> str:
        return self._digest.hexdigest()

    def append(self, chunk: bytes) -> None:
        self._digest.update(chunk)
        rest = memoryview(chunk)
        while rest:  # the file is unbuffered, and a disk that fills up takes a part
            rest = rest[self._handle.write(rest) :]
        self.size_bytes += len(chunk)

    def start_over(self) -> None:
        self._handle.seek(0)
        self._handle.truncate()
        self._digest = new_digest(self._file)
        self.size_bytes = 0

    def put_in_place(self, target: Path) -> None:
        """Makes it the content at target, for good: after a power cut it is there whole or not at all."""
        os.fsync(self._handle.fileno())
        self._path.replace(target)
        # All revisions share it now. Not before the rename: killed in between, a read-only partial would remain.
        os.fchmod(self._handle.fileno(), 0o444)

    def discard(self) -> None:
        self._path.unlink(missing_ok=True)
