"""How often and how long a failing exchange with the hub is tried again."""

import msgspec

from llmgwd.domain.errors import LlmgwError
from llmgwd.weights.progress import CancelFlag, Cancelled, Notice


class Trouble(msgspec.Struct, frozen=True):
    """What went wrong with the hub, in words, and whether another try may help.

    retry_after_s is what the hub itself asked for.
    """

    error: LlmgwError
    may_pass: bool = False
    retry_after_s: float | None = None


class Patience(msgspec.Struct, frozen=True):
    """attempts counts tries in a row without any progress; the first try is one of them."""

    attempts: int = 5
    first_wait_s: float = 1.0
    longest_wait_s: float = 300.0


class Attempts:
    """One exchange: counts its failures, waits between them, and says when it is over."""

    def __init__(self, patience: Patience, cancelled: CancelFlag, notice: Notice) -> None:
        self._patience = patience
        self._cancelled = cancelled
        self._notice = notice
        self._failures = 0

    def progressed(self) -> None:
        self._failures = 0

    def wait_after(self, trouble: Trouble) -> None:
        """Returns when it is time to try again. Raises the trouble's error when that is pointless, or Cancelled."""
        self._failures += 1
        wait_s = trouble.retry_after_s
        if wait_s is None:
            wait_s = min(self._patience.first_wait_s * 2 ** (self._failures - 1), self._patience.longest_wait_s)
        is_over = self._failures >= self._patience.attempts or wait_s > self._patience.longest_wait_s
        if is_over or not trouble.may_pass:
            raise trouble.error
        self._notice(
            f"{trouble.error.message}; trying again in {wait_s:.0f} s"
            f" (attempt {self._failures + 1} of {self._patience.attempts})"
        )
        if self._cancelled.wait(wait_s):
            raise Cancelled
