"""Room on the disk: what a fetch may take of it, less what others that run still need."""

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from llmgwd.domain.errors import refused
from llmgwd.domain.files import RepoFile, size_words
from llmgwd.weights.library import Library


class Space:
    """The ledger of all fetches of this process. Safe to use from several threads."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._reserved: dict[str, tuple[RepoFile, ...]] = {}

    @contextmanager
    def reserved(
        self, who: str, files: Iterable[RepoFile], min_free: int, *, keep: Collection[tuple[str, str]] | None = None
    ) -> Iterator[None]:
        """Nobody else is given the room for these files within the block.

        who names the fetch to others that are refused. keep, if given, is what clean-up would have to keep; then the
        hint says what clean-up would give. Raises LlmgwError `no_space` with the numbers when all that is to come
        would leave less than min_free bytes.
        """
        files = tuple(files)
        with self._lock:
            self._check(files, min_free, keep)
            self._reserved[who] = files
        try:
            yield
        finally:
            with self._lock:
                del self._reserved[who]

    def _check(self, files: tuple[RepoFile, ...], min_free: int, keep: Collection[tuple[str, str]] | None) -> None:
        # What is needed before what is free: bytes that come in between are counted twice rather than not at all.
        needed, others = self._library.needed_bytes(files), self._others(files)
        wanted, free = needed + sum(others.values()) + min_free, self._library.free_bytes()
        if needed == 0 or wanted <= free:
            return
        needs = [f"the weights need {size_words(needed)} more"]
        needs += [f"{who} still needs {size_words(size_bytes)}" for who, size_bytes in others.items()]
        message = (
            f"{', '.join(needs)} and {size_words(min_free)} must stay free (weights.min_free),"
            f" but {self._library.layout.root} has {size_words(free)} free"
        )
        hint = "make room, or set weights.dir to a larger disk"
        if others:
            hint = f"wait for {', '.join(others)} (`llmgw ctl jobs list`), {hint}"
        if keep is not None:
            coming = [*files, *(file for reserved in self._reserved.values() for file in reserved)]
            freed = sum(removed.freed_bytes for removed in self._library.prune(keep, wanted=coming, dry_run=True))
            enough = "enough" if wanted <= free + freed else "not enough"
            hint = f"`llmgw ctl weights prune` would give {size_words(freed)}, {enough}; {hint}"
        raise refused("no_space", message, hint=hint)

    def _others(self, files: Iterable[RepoFile]) -> dict[str, int]:
        """What each other fetch still adds to the disk, every content counted once."""
        counted, found = {file.content_id for file in files}, {}
        for who, reserved in self._reserved.items():
            own = [file for file in reserved if file.content_id not in counted]
            counted |= {file.content_id for file in own}
            if size_bytes := self._library.needed_bytes(own):
                found[who] = size_bytes
        return found
