"""What of the state folder is its owner's alone, in a folder that others may look into too."""

from contextlib import suppress
from pathlib import Path


def make_private(folder: Path) -> None:
    """Makes a folder that nobody else can look into, also of one that is there."""
    folder.mkdir(mode=0o700, exist_ok=True)
    _close(folder, 0o700)


def make_file_private(path: Path) -> None:
    """Makes a file that nobody else can read, also of one that is there."""
    path.touch(mode=0o600)
    _close(path, 0o600)


def _close(path: Path, mode: int) -> None:
    # What another user owns is not ours to close.
    with suppress(PermissionError):
        path.chmod(mode)
