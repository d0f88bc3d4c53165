"""Locks on files and folders: they end with the process that holds them, however it ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from llmgwd.weights.progress import LOOK_EVERY_S, CancelFlag, Cancelled


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Held for moments only, so the wait for it needs no way out."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked_file(path: Path, cancelled: CancelFlag) -> Iterator[BinaryIO]:
    """The file, made if needed, opened to read and write, and nobody else's meanwhile. Raises Cancelled."""
    while True:
        path.touch()
        with path.open("r+b", buffering=0) as file:
            while not try_lock(file.fileno()):
                if cancelled.wait(LOOK_EVERY_S):
                    raise Cancelled
            # Whoever held the lock may have moved or removed the file: then this is no longer the one at path.
            if _is_at(path, file.fileno()):
                yield file
                return


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
