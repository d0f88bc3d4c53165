"""Where things are in the weights folder.

    ORG--REPO/SHA/…           a revision: files under their own paths, each whole and verified, and a manifest
    .content/ID               each content once, under its hash; revisions have it by hard link
    .partial/ID               what was fetched so far of a content
    .staging/ORG--REPO--SHA…  a revision that is being put together

Everything is on one file system, so that a link or a rename brings it into place in one step.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from llmgwd.domain.files import RepoFile, Snapshot, is_repo_name

_COMMIT = re.compile(r"[0-9a-f]{40}")


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

    def revision_folders(self) -> Iterator[tuple[str, str, Path]]:
        """Repository, commit and folder of each revision that is there, by name."""
        for path in sorted(self.root.glob("*/*")):
            repo = path.parent.name.replace("--", "/")
            if _COMMIT.fullmatch(path.name) and is_repo_name(repo) and path.is_dir():
                yield repo, path.name, path

    def content_of(self, file: RepoFile) -> Path:
        return self.content / file.content_id

    def partial_of(self, file: RepoFile) -> Path:
        return self.partial / file.content_id
