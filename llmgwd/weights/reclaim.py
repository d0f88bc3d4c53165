"""Disk taken back from contents and partial files that no revision has."""

import errno
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from llmgwd.domain.files import RepoFile
from llmgwd.weights.layout import Layout
from llmgwd.weights.locks import try_lock
from llmgwd.weights.staging import wanted_by_fetches


def is_full(error: BaseException) -> bool:
    """Whether a disk, or somebody's share of it, took no more."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def give_back(layout: Layout, files: Iterable[RepoFile]) -> None:
    """Removes what there is of these files, unless a revision has it or a fetch wants it or is at work on it."""
    wanted_ids = {file.content_id for each in wanted_by_fetches(layout) for file in each.files}
    reclaim([path for file in files for path in (layout.partial_of(file), layout.content_of(file))], wanted_ids)


def reclaim(paths: Iterable[Path], kept_ids: Collection[str], *, dry_run: bool = False) -> int:
    """Removes those that are not kept, in no revision and written by nobody. Returns the bytes that are free again."""
    freed_bytes = 0
    for path in paths:
        with suppress(FileNotFoundError), path.open("rb") as handle:
            found = path.stat()
            if path.name in kept_ids or found.st_nlink > 1 or not try_lock(handle.fileno()):
                continue
            freed_bytes += found.st_blocks * 512
            if not dry_run:
                path.unlink()
    return freed_bytes
