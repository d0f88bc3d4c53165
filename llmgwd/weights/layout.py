"""Where things are in the weights folder, and the record of what a revision's folder holds.

    ORG--REPO/SHA/…           a revision: files under their own paths, each whole and verified, and a manifest
    .content/ID               each content once, under its hash; revisions have it by hard link
    .partial/ID               what was fetched so far of a content
    .staging/ORG--REPO--SHA…  a revision that is being put together

Everything is on one file system, so that a link or a rename brings it into place in one step.
"""

from pathlib import Path

import msgspec

from llmgwd.domain.files import RepoFile, Snapshot

MANIFEST = ".llmgw.json"


class Layout:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.content = root / ".content"
        self.partial = root / ".partial"
        self.staging = root / ".staging"

    def folder(self, repo: str, sha: str) -> Path:
        """Raises ValueError for what is no repository or commit, so that no name can lead elsewhere."""
        revision = Snapshot(repo, sha, ())
        return self.root / revision.repo.replace("/", "--") / revision.sha

    def content_of(self, file: RepoFile) -> Path:
        return self.content / file.content_id

    def partial_of(self, file: RepoFile) -> Path:
        return self.partial / file.content_id


def read_manifest(folder: Path) -> Snapshot | None:
    """What the folder holds; None when it is no revision's folder, or its manifest is damaged."""
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Snapshot)
    except (OSError, msgspec.MsgspecError):
        return None


def write_manifest(folder: Path, snapshot: Snapshot) -> None:
    """In one step: a reader sees the old manifest or the new one, also when the disk is full."""
    partial = folder / f"{MANIFEST}.new"
    try:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(snapshot)))
        partial.replace(folder / MANIFEST)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
