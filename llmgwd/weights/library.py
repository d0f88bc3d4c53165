"""The weights on disk: which revisions are there, whether they are whole, what they take, clean-up."""

import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile, Snapshot, size_words
from llmgwd.weights.content import expected_digest, feed, new_digest
from llmgwd.weights.download import wrong_content
from llmgwd.weights.layout import Layout
from llmgwd.weights.locks import locked_folder
from llmgwd.weights.manifest import Manifest, ensure_manifest, ensure_manifest_locked, sync_folder, write_manifest
from llmgwd.weights.progress import NEVER, CancelFlag, Progress, ignore_progress
from llmgwd.weights.reclaim import reclaim
from llmgwd.weights.staging import wanted_by_fetches

REFETCH = "`llmgw ctl weights verify --repair` fetches what is damaged or missing again, and only that"


class Removed(msgspec.Struct, frozen=True):
    """What clean-up took away, or would. freed_bytes counts only what no kept revision shares.

    repo and sha are None for what no revision has: contents and partial files of fetches that did not end.
    """

    repo: str | None
    sha: str | None
    freed_bytes: int


class Library:
    """Owns one folder; several processes may use it at once."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root.absolute())

    def make(self) -> None:
        for folder in (self.layout.content, self.layout.partial, self.layout.staging):
            folder.mkdir(parents=True, exist_ok=True)

    def folder(self, repo: str, sha: str) -> Path:
        """Where the revision is or would be. Raises ValueError for what is no repository or commit."""
        return self.layout.folder(repo, sha)

    def recorded(self, repo: str, sha: str) -> Snapshot | None:
        """The files of the revision that are on disk, with sizes and hashes; None when there are none."""
        manifest = ensure_manifest(self.layout, repo, sha)
        return manifest.snapshot if manifest is not None else None

    def revisions(self) -> list[Snapshot]:
        """All that is on disk, by repository and commit; of each the files that are there."""
        return [manifest.snapshot for manifest in self._manifests()]

    def newest_first(self) -> list[Snapshot]:
        """As `revisions`, by when each came first: files that join it later make it no newer."""
        return [manifest.snapshot for manifest in sorted(self._manifests(), key=self._arrived, reverse=True)]

    def _manifests(self) -> list[Manifest]:
        found = (ensure_manifest(self.layout, repo, sha) for repo, sha, _ in self.layout.revision_folders())
        return [manifest for manifest in found if manifest is not None]

    def _arrived(self, manifest: Manifest) -> float:
        if manifest.arrived is not None:
            return manifest.arrived.timestamp()
        try:
            return self.folder(manifest.repo, manifest.sha).stat().st_mtime
        except FileNotFoundError:  # removed meanwhile
            return 0.0

    def has(self, repo: str, sha: str, files: Iterable[RepoFile]) -> bool:
        """Whether the revision's folder has all these files, by its manifest and their sizes."""
        there = self.recorded(repo, sha)
        return there is not None and self._first_defect(there, files) is None

    def verify(
        self,
        repo: str,
        sha: str,
        files: Iterable[RepoFile],
        *,
        full: bool = False,
        forget: bool = True,
        progress: Progress = ignore_progress,
        cancelled: CancelFlag = NEVER,
    ) -> str:
        """Says in a line what was verified.

        Every file here was hashed while it was fetched, so sizes and manifest are looked at; full reads and hashes all
        of it again. With forget, a file found damaged so is known no more, and the next fetch replaces it.
        Raises LlmgwError `weights_incomplete` or `checksum_mismatch`, or Cancelled.
        """
        files = tuple(files)
        there = self.recorded(repo, sha)
        defect = "there is no such revision on disk" if there is None else self._first_defect(there, files)
        if defect is not None or there is None:
            raise LlmgwError("weights_incomplete", f"{repo} at {sha[:12]} is not whole: {defect}", hint=REFETCH)
        total_bytes = sum(file.size_bytes for file in files)
        if full:
            self._rehash(there, files, forget, progress, cancelled)
        progress(total_bytes, total_bytes)
        how = "hashed again" if full else "hashed when fetched, sizes checked"
        count = f"{len(files)} files" if len(files) != 1 else "1 file"
        return f"{count}, {size_words(total_bytes)}, {how}"

    def _first_defect(self, there: Snapshot, files: Iterable[RepoFile]) -> str | None:
        folder, known = self.folder(there.repo, there.sha), {file.path: file for file in there.files}
        for file in files:
            if file.path not in known:
                return f"{file.path} is missing"
            if known[file.path].content_id != file.content_id:
                return f"{file.path} is another file"
            try:
                size = (folder / file.path).stat().st_size
            except OSError as error:
                return f"{file.path} cannot be read ({error.strerror})"
            if size != file.size_bytes:
                return f"{file.path} has {size} bytes instead of {file.size_bytes}"
        return None

    def _rehash(
        self, there: Snapshot, files: Collection[RepoFile], forget: bool, progress: Progress, cancelled: CancelFlag
    ) -> None:
        done_bytes, total_bytes = 0, sum(file.size_bytes for file in files)
        wrong: list[LlmgwError] = []
        for file in files:
            digest, before = new_digest(file), done_bytes

            def report(count: int, before: int = before) -> None:
                progress(before + count, total_bytes)

            done_bytes += feed(digest, self.folder(there.repo, there.sha) / file.path, cancelled, report)
            if digest.hexdigest() != expected_digest(file):
                if forget:
                    self._forget(there, file)
                wrong.append(wrong_content(file, digest.hexdigest(), hint=REFETCH))
        if wrong:
            raise LlmgwError(wrong[0].code, "; ".join(error.message for error in wrong), hint=REFETCH)

    def _forget(self, there: Snapshot, damaged: RepoFile) -> None:
        """The file itself stays: something may be served from it. The next fetch replaces it."""
        folder = self.folder(there.repo, there.sha)
        with locked_folder(folder.parent):
            manifest = ensure_manifest_locked(self.layout, there.repo, there.sha)
            if manifest is not None:
                left = tuple(file for file in manifest.files if file.content_id != damaged.content_id)
                write_manifest(folder, msgspec.structs.replace(manifest, files=left))
                sync_folder(folder)
            # Last: until then whoever verifies again finds the damage again.
            self.layout.content_of(damaged).unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """What the disk has left for this user, in the nearest folder of the library that exists."""
        folder = self.layout.root
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free

    def needed_bytes(self, files: Iterable[RepoFile]) -> int:
        """What fetching these files would add to the disk, counting each content once."""
        sizes = {file.content_id: self._needed_for(file) for file in files}
        return sum(sizes.values())

    def _needed_for(self, file: RepoFile) -> int:
        with suppress(FileNotFoundError):
            if self.layout.content_of(file).stat().st_size == file.size_bytes:
                return 0
        with suppress(FileNotFoundError):
            return max(file.size_bytes - self.layout.partial_of(file).stat().st_size, 0)
        return file.size_bytes

    def prune(
        self,
        keep: Collection[tuple[str, str]],
        *,
        wanted: Iterable[RepoFile] = (),
        leftovers: bool = True,
        dry_run: bool = False,
    ) -> list[Removed]:
        """Removes every revision whose (repo, sha) is not in keep, but of it no content that is wanted.

        leftovers: also what fetches that did not end have left; a fetch that goes on later then starts anew.
        Never touches what is in keep or what a running fetch wants.
        """
        fetched, on_disk = wanted_by_fetches(self.layout, dry_run=dry_run), self.revisions()
        kept = set(keep) | {(revision.repo, revision.sha) for revision in fetched}
        going = [revision for revision in on_disk if (revision.repo, revision.sha) not in kept]
        staying = [revision for revision in on_disk if revision not in going]
        kept_ids = {file.content_id for revision in (*fetched, *staying) for file in revision.files}
        kept_ids |= {file.content_id for file in wanted}
        removed = []
        for revision in going:
            freed = {file.content_id: file.size_bytes for file in revision.files if file.content_id not in kept_ids}
            kept_ids |= freed.keys()
            removed.append(Removed(revision.repo, revision.sha, sum(freed.values())))
            if not dry_run:
                self._remove(revision, freed)
        leftover_bytes = reclaim(self._all_parts(), kept_ids, dry_run=dry_run) if leftovers else 0
        return [*removed, Removed(None, None, leftover_bytes)] if leftover_bytes else removed

    def _all_parts(self) -> list[Path]:
        folders = (self.layout.content, self.layout.partial)
        return [path for folder in folders if folder.is_dir() for path in folder.iterdir()]

    def _remove(self, revision: Snapshot, content_ids: Iterable[str]) -> None:
        folder = self.folder(revision.repo, revision.sha)
        doomed = self.layout.staging / f"removed-{revision.sha}"
        with locked_folder(folder.parent), suppress(FileNotFoundError):
            folder.rename(doomed)  # first out of sight, so that nobody finds half a revision
        shutil.rmtree(doomed, ignore_errors=True)
        for content_id in content_ids:
            (self.layout.content / content_id).unlink(missing_ok=True)
