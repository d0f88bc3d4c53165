"""Files of a model repository, what they are to a model, and what differs between two sets of them."""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

import msgspec

_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPO = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
_SIZE_UNITS = ("KiB", "MiB", "GiB", "TiB")


class RepoFile(msgspec.Struct, frozen=True):
    """One file as the hub lists it. Raises ValueError for a path that could leave its folder.

    path is relative, with slashes. sha256 is of the content and known for large (LFS) files only; blob_id is the
    git blob id, for a large file that of its LFS pointer. A file that was not hashed yet has neither.
    """

    path: str
    size_bytes: int
    sha256: str | None = None
    blob_id: str = ""

    def __post_init__(self) -> None:
        if not self.path or "\0" in self.path or any(part in ("", ".", "..") for part in self.path.split("/")):
            raise ValueError(f"{self.path!r} is not a path inside a repository")
        if self.size_bytes < 0:
            raise ValueError(f"{self.path} has an impossible size: {self.size_bytes}")
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            raise ValueError(f"{self.path} has an impossible sha256: {self.sha256!r}")
        if self.blob_id and not _GIT_ID.fullmatch(self.blob_id):
            raise ValueError(f"{self.path} has an impossible git id: {self.blob_id!r}")

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def content_id(self) -> str:
        """Equal for equal content, and fit for a file name. Raises ValueError when the file was not hashed."""
        if self.sha256 is not None:
            return f"sha256-{self.sha256}"
        if self.blob_id:
            return f"git-{self.blob_id}"
        raise ValueError(f"{self.path} has no hash")


class Snapshot(msgspec.Struct, frozen=True):
    """All files of one revision. repo is ORG/REPO, sha the 40-hex commit. Raises ValueError for anything else."""

    repo: str
    sha: str
    files: tuple[RepoFile, ...]

    def __post_init__(self) -> None:
        if not is_repo_name(self.repo):
            raise ValueError(f"{self.repo!r} is not a repository name; it must look like ORG/REPO")
        if not _COMMIT.fullmatch(self.sha):
            raise ValueError(f"{self.sha!r} is not a commit of {self.repo}; it must be 40 hex digits")


def is_repo_name(repo: str) -> bool:
    """The hub's own rule. It forbids `--`, so that joining the parts with it gives distinct folder names."""
    return bool(_REPO.fullmatch(repo)) and "--" not in repo and ".." not in repo


class Changes(msgspec.Struct, frozen=True):
    """What differs between two sets of files, by path and content. changed and moved hold the new files.

    moved: the same content under another path.
    """

    added: tuple[RepoFile, ...] = ()
    removed: tuple[RepoFile, ...] = ()
    changed: tuple[RepoFile, ...] = ()
    moved: tuple[RepoFile, ...] = ()
    same: tuple[RepoFile, ...] = ()

    @property
    def touch_content(self) -> bool:
        """Whether a model served from the new files could answer differently at all."""
        return bool(self.added or self.removed or self.changed or self.renamed)

    @property
    def renamed(self) -> tuple[RepoFile, ...]:
        """Those of moved that an engine knows by their names, as all files of a folder; a GGUF file it is told."""
        return tuple(file for file in self.moved if not file.path.lower().endswith(".gguf"))

    def summary(self) -> str:
        """One line: `weights (1 of 4 files, 3.9 GiB new), tokenizer`."""
        if not self.touch_content:
            return "no change in the files that are served"
        return ", ".join(self.words())

    def words(self) -> list[str]:
        """A phrase for each kind of file that changed."""
        return [self._summary_of(kind) for kind in self.kinds()]

    def kinds(self) -> list[str]:
        """Those of KINDS of which a file changed, came, went or got another name."""
        kinds = {kind_of(file.path) for file in (*self.changed, *self.added, *self.removed, *self.renamed)}
        return sorted(kinds, key=KINDS.index)

    def _summary_of(self, kind: str) -> str:
        def of_kind(files: Iterable[RepoFile]) -> list[RepoFile]:
            return [file for file in files if kind_of(file.path) == kind]

        new = of_kind((*self.added, *self.changed))
        if not new and not of_kind(self.removed):
            return f"{kind} (renamed)"
        if kind not in SIZED_KINDS:
            return kind if new else f"{kind} removed"
        total = len(of_kind((*self.added, *self.changed, *self.moved, *self.same)))
        size = size_words(sum(file.size_bytes for file in new))
        return f"{kind} ({len(new)} of {total} files, {size} new)" if new else f"{kind} (files removed)"


def compare(old: Iterable[RepoFile], new: Iterable[RepoFile]) -> Changes:
    """Both sets are the files selected to be served, not everything in the repository."""
    before = {file.path: file for file in old}
    after = {file.path: file for file in new}
    gone: dict[str, list[RepoFile]] = {}
    for path, file in before.items():
        if path not in after:
            gone.setdefault(file.content_id, []).append(file)
    added: list[RepoFile] = []
    changed: list[RepoFile] = []
    moved: list[RepoFile] = []
    same: list[RepoFile] = []
    for path, file in after.items():
        if path not in before:
            if old_names := gone.get(file.content_id):
                old_names.pop(0)
                moved.append(file)
            else:
                added.append(file)
        else:
            (same if before[path].content_id == file.content_id else changed).append(file)
    removed = [file for left in gone.values() for file in left]
    return Changes(*(tuple(files) for files in (added, removed, changed, moved, same)))


SIZED_KINDS = ("weights", "projector")
KINDS = (*SIZED_KINDS, "tokenizer", "chat template", "generation config", "config", "code", "other files")
"""What files are to a model, in the order in which a change of them is told."""

_NAMES = {
    "generation_config.json": "generation config",
    "chat_template.json": "chat template",
    "special_tokens_map.json": "tokenizer",
    "added_tokens.json": "tokenizer",
    "vocab.json": "tokenizer",
    "vocab.txt": "tokenizer",
    "merges.txt": "tokenizer",
    "tekken.json": "tokenizer",
    "spiece.model": "tokenizer",
}
_SUFFIXES = {
    ".gguf": "weights",
    ".safetensors": "weights",
    ".bin": "weights",
    ".pt": "weights",
    ".pth": "weights",
    ".jinja": "chat template",
    ".tiktoken": "tokenizer",
    ".py": "code",
    ".json": "config",
}


def kind_of(path: str) -> str:
    """One of KINDS, by the names that the field uses."""
    name = path.rpartition("/")[2].lower()
    if name.endswith(".gguf") and "mmproj" in name:
        return "projector"
    if name.endswith(".index.json"):
        return "weights"
    if name.startswith("tokenizer"):
        return "tokenizer"
    return _NAMES.get(name) or _SUFFIXES.get(PurePosixPath(name).suffix, "other files")


def size_words(size_bytes: int) -> str:
    """`3.9 GiB`; the same units as in server.yaml."""
    size, unit = float(size_bytes), "bytes"
    for larger in _SIZE_UNITS:
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size_bytes} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
