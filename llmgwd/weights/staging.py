"""A revision's folder while it is put together, and bringing it into place."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile, Snapshot
from llmgwd.weights.layout import Layout
from llmgwd.weights.locks import locked_folder, try_lock
from llmgwd.weights.manifest import Manifest, ensure_manifest_locked, read_manifest, sync_folder, write_manifest

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)


class Staging:
    """Made by `staged`. Its manifest says from the start what is wanted, so that clean-up leaves that alone."""

    def __init__(self, folder: Path, layout: Layout, wanted: Snapshot) -> None:
        self.folder = folder
        self._layout = layout
        self._wanted = wanted

    def check_links(self) -> None:
        """Takes an empty file all the ways that weights go, before any come.

        Raises LlmgwError `weights_no_links` where the weights folder does not allow that, or OSError.
        """
        repo_folder = self._layout.folder(self._wanted.repo, self._wanted.sha).parent
        home = repo_folder if repo_folder.exists() else self._layout.root
        probe, name = self.folder / ".probe", f".probe-{self.folder.name}"
        content, partial, published = self._layout.content / name, self._layout.partial / name, home / name
        try:
            probe.touch()
            os.link(probe, content)
            content.rename(partial)
            probe.rename(published)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            message = f"{self._layout.root} cannot have the same file in two of its folders: {error.strerror}"
            hint = "set weights.dir to a folder that is all on one file system with hard links"
            raise LlmgwError("weights_no_links", message, hint=hint) from error
        finally:
            for path in (probe, content, partial, published):
                path.unlink(missing_ok=True)

    def take(self, file: RepoFile) -> bool:
        """Links the file from the contents on disk; whether its content was there. One that was cut is thrown away.

        From then on it stays on disk for this fetch, whatever clean-up does.
        """
        place, content = self.folder / file.path, self._layout.content_of(file)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            if content.stat().st_size != file.size_bytes:
                content.unlink()
                return False
            os.link(content, place)
        except FileNotFoundError:
            return False
        except FileExistsError:
            return True
        return True

    def publish(self) -> Path:
        """Brings the folder into place. Other files of the same revision that are there stay there."""
        target = self._layout.folder(self._wanted.repo, self._wanted.sha)
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked_folder(target.parent):
            there = ensure_manifest_locked(self._layout, self._wanted.repo, self._wanted.sha)
            if there is None:
                arriving = Manifest(self._wanted.repo, self._wanted.sha, self._wanted.files, datetime.now(UTC))
                write_manifest(self.folder, arriving)
                for folder in (self.folder, *(path for path in self.folder.rglob("*") if path.is_dir())):
                    sync_folder(folder)
                with ExitStack() as undo:
                    undo.callback(shutil.rmtree, target, ignore_errors=True)
                    self.folder.rename(target)
                    sync_folder(target.parent)
                    undo.pop_all()
            else:
                self._add_to(target, there)
        return target

    def _add_to(self, target: Path, there: Manifest) -> None:
        """All of the files or none, which also gives its disk back."""
        known = {file.path: file for file in there.files}
        with ExitStack() as undo:
            for file in self._wanted.files:
                place = target / file.path
                place.parent.mkdir(parents=True, exist_ok=True)
                (self.folder / file.path).replace(place)
                if file.path not in known:
                    undo.callback(place.unlink)
                sync_folder(place.parent)
                known[file.path] = file
            files = tuple(known[path] for path in sorted(known))
            write_manifest(target, msgspec.structs.replace(there, files=files))
            undo.pop_all()
        # All is in place. Should this fail, a power cut now would bring the old manifest back, which is true as well.
        with suppress(OSError):
            sync_folder(target)


@contextmanager
def staged(layout: Layout, wanted: Snapshot) -> Iterator[Staging]:
    """A folder of its own for one fetch, gone afterwards unless it was published."""
    prefix = f"{wanted.repo.replace('/', '--')}--{wanted.sha}-"
    with ExitStack() as at_end:
        with locked_folder(layout.staging):
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=layout.staging))
            at_end.callback(shutil.rmtree, folder, ignore_errors=True)  # once published, it is no longer at this path
            folder.chmod(0o755)
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            at_end.callback(os.close, handle)
            try_lock(handle)  # held for as long as this process is alive: clean-up tells by it
            write_manifest(folder, Manifest(wanted.repo, wanted.sha, wanted.files))
        yield Staging(folder, layout, wanted)


def wanted_by_fetches(layout: Layout, *, dry_run: bool = False) -> list[Snapshot]:
    """What running fetches want. What killed ones left in the staging folder is removed, unless dry_run."""
    wanted: list[Snapshot] = []
    if not layout.staging.is_dir():
        return wanted
    with locked_folder(layout.staging):
        for folder in layout.staging.iterdir():
            manifest = None if _was_abandoned(folder) else read_manifest(folder)
            if manifest is not None:
                wanted.append(manifest)
            elif not dry_run:
                shutil.rmtree(folder, ignore_errors=True)
    return wanted


def _was_abandoned(folder: Path) -> bool:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # published or removed by its fetch just now
        return True
    try:
        return try_lock(handle)
    finally:
        os.close(handle)
