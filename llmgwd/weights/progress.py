"""What a long operation tells its caller while it runs, and how the caller stops it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

Result = TypeVar("Result")

Progress = Callable[[int, int], None]
"""Called with (done_bytes, total_bytes), always in the caller's own thread."""

Notice = Callable[[str], None]
"""Called with a line for people about what the operation is waiting for, always in the caller's own thread."""

LOOK_EVERY_S = 0.05


class Cancelled(Exception):  # noqa: N818 - it is no error: the caller asked for it
    """The caller's flag was set; what was fetched so far is kept for the next time."""


class CancelFlag(Protocol):
    """A `threading.Event`, or what behaves like one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class _Never:
    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        return threading.Event().wait(timeout)


NEVER: CancelFlag = _Never()


def ignore_progress(done_bytes: int, total_bytes: int) -> None:
    """For callers that show nothing."""


def ignore_notice(line: str) -> None:
    """For callers that show nothing."""


def check(cancelled: CancelFlag) -> None:
    if cancelled.is_set():
        raise Cancelled


def in_background(act: Callable[[], Result]) -> "Future[Result]":
    """Runs act in a thread that neither delays the end of the process nor has to be waited for."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:  # noqa: BLE001 - it is handed to whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, name="weights", daemon=True).start()
    return future


def abandonable(act: Callable[[], Result], cancelled: CancelFlag) -> Result:
    """The result of a call that cannot be interrupted itself: cancelled, it is left to run into its own time-out."""
    future = in_background(act)
    while True:
        check(cancelled)
        try:
            return future.result(LOOK_EVERY_S)
        except TimeoutError:
            if future.done():  # act itself raised it
                raise
