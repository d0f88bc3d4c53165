"""The record of what a revision's folder holds: durable, and made anew from the contents on disk when it is damaged."""

import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from llmgwd.domain.files import RepoFile, Snapshot
from llmgwd.weights.layout import Layout
from llmgwd.weights.locks import locked_folder

log = logging.getLogger(__name__)

MANIFEST = ".llmgw.json"


class Manifest(Snapshot, frozen=True):
    """Of the revision, the files that are there."""

    arrived: datetime | None = None
    """When the first of them came; null for what was written before that was recorded."""

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.repo, self.sha, self.files)


def read_manifest(folder: Path) -> Manifest | None:
    """None when there is none, or one that is damaged."""
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError):
        return None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """In one step: a reader sees the old manifest or the new one, also on a full disk and after a power cut.

    The new one is there for good after `sync_folder`.
    """
    partial = folder / f"{MANIFEST}.new"
    try:
        with partial.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest)))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(folder / MANIFEST)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Brings the names in it to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def ensure_manifest(layout: Layout, repo: str, sha: str) -> Manifest | None:
    """The manifest of a revision's folder, made anew when it is damaged; None when there is no such folder.

    Raises ValueError for what is no repository or commit.
    """
    folder = layout.folder(repo, sha)
    if (manifest := _own_manifest(folder, repo, sha)) is not None:
        return manifest
    try:
        with locked_folder(folder.parent):
            return ensure_manifest_locked(layout, repo, sha)
    except FileNotFoundError:
        return None


def ensure_manifest_locked(layout: Layout, repo: str, sha: str) -> Manifest | None:
    """As `ensure_manifest`, for one who holds the lock of the repository's folder."""
    folder = layout.folder(repo, sha)
    if not folder.is_dir():
        return None
    return _own_manifest(folder, repo, sha) or _made_anew(layout, folder, repo, sha)


def _own_manifest(folder: Path, repo: str, sha: str) -> Manifest | None:
    """Not one that says it is another revision's."""
    manifest = read_manifest(folder)
    return manifest if manifest is not None and (manifest.repo, manifest.sha) == (repo, sha) else None


def _made_anew(layout: Layout, folder: Path, repo: str, sha: str) -> Manifest:
    """A file of the folder is one of the contents, which bear their hash as their name; what is not is left out."""
    arrived = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
    manifest = Manifest(repo, sha, tuple(_verified_files(layout, folder)), arrived)
    count = len(manifest.files)
    log.warning("manifest damaged, made anew from the files on disk folder=%s files=%d", folder, count)
    try:
        write_manifest(folder, manifest)
        sync_folder(folder)
    except OSError as error:
        log.error("manifest cannot be written folder=%s why=%s", folder, error.strerror)
    return manifest


def _verified_files(layout: Layout, folder: Path) -> Iterator[RepoFile]:
    names = {_identity(path): path.name for path in layout.content.iterdir()} if layout.content.is_dir() else {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        kind, _, digest = names.get(_identity(path), "").partition("-")
        relative, size_bytes = path.relative_to(folder).as_posix(), path.stat().st_size
        if kind == "sha256":
            yield RepoFile(relative, size_bytes, sha256=digest)
        elif kind == "git":
            yield RepoFile(relative, size_bytes, blob_id=digest)


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
