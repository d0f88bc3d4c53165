"""The repositories and revisions of the local hub, as files.

    ROOT/blobs/SHA256                         the content of one file, kept once whichever revisions have it
    ROOT/repos/ORG/NAME/refs.json             {"main": SHA, "v1": SHA, ...}: branches and tags
    ROOT/repos/ORG/NAME/revisions/SHA.json    a Revision: {"sha", "parent", "message", "created", "files": {...}}
    ROOT/repos/ORG/NAME/access.json           an Access: {"kind", "tokens"}; absent for a public repository

SHA is 40 hex digits. Nothing is cached in memory, so a commit made by one process is served by another at once.
"""

import hashlib
import os
import re
import shutil
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from tests.support.hub_xet import HubXet

REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT_SHA = re.compile(r"[0-9a-f]{40}")
ALWAYS_LARGE = (".gguf", ".safetensors")
HARD_LINK_FROM_BYTES = 1 << 20

Content = Path | bytes | str


class HubFile(msgspec.Struct, frozen=True):
    """One file of a revision.

    oid is the git blob id: of the content, or for a large file (pointer_size is set) of its LFS pointer.
    """

    size: int
    sha256: str
    oid: str
    pointer_size: int | None = None

    @property
    def etag(self) -> str:
        """What the hub gives as entity tag: the sha256 of a large file, the git blob id of a small one."""
        return self.oid if self.pointer_size is None else self.sha256


class Revision(msgspec.Struct, frozen=True):
    """One commit; files maps each path to what it is at that commit. created is ISO 8601, UTC."""

    sha: str
    parent: str | None
    message: str
    created: str
    files: dict[str, HubFile]


class Access(msgspec.Struct, frozen=True):
    """Who may read a repository.

    Without one of the tokens a private one is hidden, and a gated one is listed but its files are not served.
    """

    kind: Literal["public", "private", "gated"] = "public"
    tokens: frozenset[str] = frozenset()


class HubStore:
    """Owns the folder ROOT. Safe to use from several threads."""

    def __init__(self, root: Path, large_file_bytes: int) -> None:
        self.root = root
        self._large_file_bytes = large_file_bytes
        self.xet: HubXet | None = None
        """Where large files are as well, when the hub offers xet storage."""
        self._writing = threading.Lock()

    def commit(self, repo: str, files: Mapping[str, Content | None], message: str, branch: str) -> str:
        """Puts a new revision on top of branch, making the repository or the branch if needed; returns its sha.

        Paths not in files carry over, None deletes one. The sha depends on parent, message and content only.
        A file of 1 MiB or more is hard-linked where possible: replace a committed file, never write into it.
        Raises ValueError for a malformed repository id or path.
        """
        if not REPO_ID.fullmatch(repo):
            raise ValueError(f"{repo!r} is not a repository id; it must look like ORG/NAME")
        with self._writing:
            parent = self.find_revision(repo, branch)
            kept = dict(parent.files) if parent else {}
            for path, content in files.items():
                if not path or any(part in ("", ".", "..") for part in path.split("/")):
                    raise ValueError(f"{path!r} is not a path inside a repository")
                if content is None:
                    kept.pop(path, None)
                else:
                    kept[path] = self._store(path, content)
            parent_sha = parent.sha if parent else None
            identity = [parent_sha, message, sorted((path, file.sha256) for path, file in kept.items())]
            sha = hashlib.sha1(msgspec.json.encode(identity)).hexdigest()
            created = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            revision = Revision(sha, parent_sha, message, created, dict(sorted(kept.items())))
            _write_json(self._repo(repo) / "revisions" / f"{sha}.json", revision)
            _write_json(self._repo(repo) / "refs.json", {**self._refs(repo), branch: sha})
        return sha

    def set_ref(self, repo: str, name: str, sha: str) -> None:
        """Makes branch or tag name point at an existing revision. Raises ValueError when there is none such."""
        if self.find_revision(repo, sha) is None:
            raise ValueError(f"{repo} has no revision {sha}")
        with self._writing:
            _write_json(self._repo(repo) / "refs.json", {**self._refs(repo), name: sha})

    def set_access(self, repo: str, access: Access) -> None:
        _write_json(self._repo(repo) / "access.json", access)

    def has_repo(self, repo: str) -> bool:
        return bool(REPO_ID.fullmatch(repo)) and (self._repo(repo) / "refs.json").is_file()

    def access(self, repo: str) -> Access:
        path = self._repo(repo) / "access.json"
        return msgspec.json.decode(path.read_bytes(), type=Access) if path.is_file() else Access()

    def find_revision(self, repo: str, name: str) -> Revision | None:
        """The revision that a branch, a tag or a full 40-hex sha names; None when there is none such."""
        sha = self._refs(repo).get(name, name)
        path = self._repo(repo) / "revisions" / f"{sha}.json"
        if not COMMIT_SHA.fullmatch(sha) or not path.is_file():
            return None
        return msgspec.json.decode(path.read_bytes(), type=Revision)

    def history(self, repo: str, revision: Revision) -> list[Revision]:
        """The revision and its ancestors, newest first."""
        revisions = [revision]
        while (sha := revisions[-1].parent) and (parent := self.find_revision(repo, sha)):
            revisions.append(parent)
        return revisions

    def blob(self, sha256: str) -> Path:
        return self.root / "blobs" / sha256

    def _repo(self, repo: str) -> Path:
        return self.root / "repos" / repo

    def _refs(self, repo: str) -> dict[str, str]:
        path = self._repo(repo) / "refs.json"
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str]) if path.is_file() else {}

    def _store(self, path: str, content: Content) -> HubFile:
        if isinstance(content, Path):
            found = content.stat()
            size, sha256 = found.st_size, _sha256_of_file(content, found.st_size, found.st_mtime_ns, found.st_ino)
        else:
            content = content.encode() if isinstance(content, str) else content
            size, sha256 = len(content), hashlib.sha256(content).hexdigest()
        if not self.blob(sha256).exists():
            _place(content, self.blob(sha256))
        if size >= self._large_file_bytes or path.endswith(ALWAYS_LARGE):
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
            return HubFile(size, sha256, _git_blob_id(pointer), len(pointer))
        return HubFile(size, sha256, _git_blob_id(self.blob(sha256).read_bytes()))


def _place(content: Path | bytes, target: Path) -> None:
    """Brings content to target in one step, so that a reader sees all of it or nothing."""
    partial = _partial_path(target)
    if isinstance(content, bytes):
        partial.write_bytes(content)
    elif content.stat().st_size < HARD_LINK_FROM_BYTES:
        shutil.copyfile(content, partial)
    else:
        try:
            os.link(content, partial)
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(content, partial)
    partial.replace(target)


def _write_json(target: Path, value: object) -> None:
    partial = _partial_path(target)
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(value)))
    partial.replace(target)


def _partial_path(target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}")


@lru_cache(maxsize=64)
def _sha256_of_file(path: Path, size: int, mtime_ns: int, inode: int) -> str:
    """The content's hash; the other arguments make the cache forget a file that was replaced."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git_blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
