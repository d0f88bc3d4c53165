"""A revision's files onto disk: several at a time, each verified, the folder in place only when it is whole."""

import queue
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile, Snapshot, size_words
from llmgwd.weights.download import Download
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.manifest import MANIFEST
from llmgwd.weights.progress import (
    LOOK_EVERY_S,
    NEVER,
    CancelFlag,
    Notice,
    Progress,
    check,
    ignore_notice,
    ignore_progress,
    in_background,
)
from llmgwd.weights.reclaim import give_back, is_full
from llmgwd.weights.staging import staged

FILES_AT_A_TIME = 4
GRACE_S = 2.0
"""How long a failed or cancelled fetch waits for its threads. One that is slower ends at its own time-out, and until
then keeps the lock on its partial file."""


def fetch(
    hub: Hub,
    snapshot: Snapshot,
    files: Iterable[RepoFile],
    library: Library,
    *,
    progress: Progress = ignore_progress,
    cancelled: CancelFlag = NEVER,
    notice: Notice = ignore_notice,
) -> Path:
    """The folder of the revision, with at least these files in it, all whole and verified.

    Progress counts the bytes of what is not on disk under its hash yet; what an earlier fetch left counts as done.
    Raises LlmgwError, or Cancelled; what was fetched so far is kept for the next time, except on a full disk.
    """
    wanted = Snapshot(snapshot.repo, snapshot.sha, tuple(sorted(files, key=lambda file: file.path)))
    if not wanted.files:
        raise ValueError("nothing to fetch")
    if any(file.path == MANIFEST for file in wanted.files):
        raise LlmgwError(
            "weights_name", f"{wanted.repo} has a file {MANIFEST}, the name of a record that is kept there"
        )
    check(cancelled)
    if library.has(wanted.repo, wanted.sha, wanted.files):
        return library.folder(wanted.repo, wanted.sha)
    try:
        library.make()
        with staged(library.layout, wanted) as staging:
            staging.check_links()
            missing = {file.content_id: file for file in wanted.files if not staging.take(file)}
            _Crew(hub, wanted, missing.values(), library, notice).fetch(progress, cancelled)
            lost = [file.path for file in wanted.files if not staging.take(file)]
            if lost:
                raise LlmgwError(
                    "weights_lost", f"{lost[0]} vanished from {library.layout.content} while it was fetched"
                )
            return staging.publish()
    except OSError as error:
        if is_full(error):  # a full disk is somebody's outage: what this fetch took of it is worth more than a resume
            give_back(library.layout, wanted.files)
        raise _disk_trouble(error, wanted, library) from error


class _Crew:
    """A few threads that work through the contents, largest first, so that the last one does not run alone."""

    def __init__(self, hub: Hub, wanted: Snapshot, files: Iterable[RepoFile], library: Library, notice: Notice) -> None:
        self._layout = library.layout
        self._has_failed_for_space = False
        self._notice = notice
        self._notices: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._downloads = [
            Download(hub, wanted, file, library.layout, self._notices.put)
            for file in sorted(files, key=lambda file: -file.size_bytes)
        ]
        self._waiting = deque(self._downloads)
        self._total_bytes = sum(download.file.size_bytes for download in self._downloads)

    def fetch(self, progress: Progress, cancelled: CancelFlag) -> None:
        stop = threading.Event()
        threads = min(FILES_AT_A_TIME, len(self._downloads))
        running: set[Future[None]] = {in_background(lambda: self._work(stop)) for _ in range(threads)}
        try:
            while running:
                done, running = wait(running, timeout=LOOK_EVERY_S, return_when=FIRST_COMPLETED)
                self._report(progress)
                check(cancelled)
                for future in done:
                    future.result()
        except BaseException as error:
            self._has_failed_for_space = is_full(error)
            self._stop(stop, running)
            raise

    def _work(self, stop: threading.Event) -> None:
        while True:
            try:
                download = self._waiting.popleft()
            except IndexError:
                return
            try:
                download.run(stop)
            finally:
                if self._has_failed_for_space:  # this thread may end after all others have given back theirs
                    give_back(self._layout, [download.file])

    def _report(self, progress: Progress) -> None:
        progress(sum(download.done_bytes for download in self._downloads), self._total_bytes)
        while not self._notices.empty():
            self._notice(self._notices.get())

    def _stop(self, stop: threading.Event, running: set[Future[None]]) -> None:
        stop.set()
        for download in self._downloads:
            download.interrupt()
        wait(running, timeout=GRACE_S)


def _disk_trouble(error: OSError, wanted: Snapshot, library: Library) -> LlmgwError:
    root = library.layout.root
    if is_full(error):
        size = size_words(sum(file.size_bytes for file in wanted.files))
        message = (
            f"{root} is full ({error.strerror}): {wanted.repo} has {size}, {size_words(library.free_bytes())} are free"
        )
        hint = "what this fetch had written was removed; make room or set weights.dir elsewhere"
        return LlmgwError("disk_full", message, hint=hint)
    message = f"cannot write weights to {root}: {error.strerror or error}"
    return LlmgwError("weights_folder", message, hint="check the folder, its owner and its disk")
