"""One file's content from the hub to disk: resumed, hashed while it streams, in place only when it is right."""

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile, Snapshot
from llmgwd.weights.content import expected_digest
from llmgwd.weights.hub import Body, Hub
from llmgwd.weights.layout import Layout
from llmgwd.weights.locks import locked_file
from llmgwd.weights.partial import Partial
from llmgwd.weights.patience import Attempts
from llmgwd.weights.progress import CancelFlag, Notice, check
from llmgwd.weights.troubles import FAILURES, UnexpectedAnswerError, XetError, trouble

FETCHES_OF_WRONG_CONTENT = 2
PROGRESS_BYTES = 1 << 20
"""So much makes an attempt count as none of the failures: a connection that brings a little and drops is one."""


class Download:
    """One content on its way. `run` is for one thread; `done_bytes` and `interrupt` are for others."""

    def __init__(self, hub: Hub, revision: Snapshot, file: RepoFile, layout: Layout, notice: Notice) -> None:
        self.file = file
        self._hub = hub
        self._revision = revision
        self._partial = layout.partial_of(file)
        self._target = layout.content_of(file)
        self._notice = notice
        self._body: Body | None = None
        self._source = ""
        """Who sent what came last, and whether with a token, in words."""
        self._by_xet = True

    @property
    def done_bytes(self) -> int:
        """Read from disk, so it also counts what another fetch of the same content brings meanwhile."""
        try:
            return min(self._partial.stat().st_size, self.file.size_bytes)
        except FileNotFoundError:
            return self.file.size_bytes if self._target.exists() else 0

    def interrupt(self) -> None:
        if (body := self._body) is not None:
            body.interrupt()

    def run(self, cancelled: CancelFlag) -> None:
        """Returns when the content is in place. Raises LlmgwError, OSError or Cancelled, and keeps what it has."""
        if self._target.exists():
            return
        with locked_file(self._partial, cancelled) as handle:
            partial = Partial(self.file, self._partial, handle, cancelled)
            if self._target.exists():  # brought by another fetch while this one waited for the lock
                partial.discard()
            else:
                self._fetch(partial, cancelled)

    def _fetch(self, partial: Partial, cancelled: CancelFlag) -> None:
        for fetch in range(1, FETCHES_OF_WRONG_CONTENT + 1):
            self._complete(partial, cancelled)
            if partial.digest() == expected_digest(self.file):
                partial.put_in_place(self._target)
                return
            got = partial.digest()
            partial.start_over()
            self._by_xet = False
            if fetch < FETCHES_OF_WRONG_CONTENT:
                self._notice(f"{self.file.path} arrived damaged{self._source}: {got[:12]}…; fetching it once more")
        partial.discard()
        hint = f"it came{self._source}; a proxy or a disk may damage data: check them, then try again"
        raise wrong_content(self.file, got, hint=hint)

    def _complete(self, partial: Partial, cancelled: CancelFlag) -> None:
        attempts = Attempts(self._hub.patience, cancelled, self._notice)
        furthest = partial.size_bytes
        while not partial.is_complete:
            check(cancelled)
            asked = self._hub.asked(self._revision.repo, self._revision.sha, self.file.path)
            try:
                with self._hub.open_file(asked, self.file, partial.size_bytes, by_xet=self._by_xet) as body:
                    self._source = f" from {asked.named(body.host)} ({asked.with_token(body.host)})"
                    self._receive(body, partial, cancelled)
            except FAILURES as error:
                check(cancelled)  # a read that was interrupted looks like a lost connection
                self._by_xet = self._by_xet and not isinstance(error, XetError)  # plain HTTP gives the same bytes
                gained_bytes = partial.size_bytes - furthest  # what was thrown away and came again is no gain
                furthest = max(furthest, partial.size_bytes)
                if gained_bytes >= PROGRESS_BYTES:
                    attempts.progressed()
                attempts.wait_after(trouble(error, asked))

    def _receive(self, body: Body, partial: Partial, cancelled: CancelFlag) -> None:
        if body.start != partial.size_bytes:
            partial.start_over()
        if body.start is None:
            raise UnexpectedAnswerError(f"{self.file.path} is shorter than listed", body.host)
        self._body = body
        try:
            check(cancelled)  # set before there was a body to interrupt, it must not wait for one that is silent
            for chunk in body.chunks():
                check(cancelled)
                partial.append(chunk)
                if partial.size_bytes > self.file.size_bytes:
                    partial.start_over()
                    longer = f"{self.file.path} is longer than its {self.file.size_bytes} bytes"
                    raise UnexpectedAnswerError(longer, body.host)
        finally:
            self._body = None
        if not partial.is_complete:
            ended = f"{self.file.path} ended at {partial.size_bytes} of {self.file.size_bytes}"
            raise UnexpectedAnswerError(ended, body.host)


def wrong_content(file: RepoFile, got: str, *, hint: str) -> LlmgwError:
    kind = "sha256" if file.sha256 else "git id"
    message = f"{file.path} has the wrong content: expected {kind} {expected_digest(file)}, got {got}"
    return LlmgwError("checksum_mismatch", message, hint=hint)
