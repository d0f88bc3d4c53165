"""Where followers wait for a change of a job or a canary, by its id."""

import anyio


class Feed:
    """Publishing wakes all who wait; nothing is queued, so that a slow follower only sees fewer states."""

    def __init__(self) -> None:
        self._waiting: dict[str, anyio.Event] = {}

    def publish(self, key: str) -> None:
        """Says that what bears this id has changed."""
        if event := self._waiting.pop(key, None):
            event.set()

    def next_change(self, key: str) -> anyio.Event:
        """Set at the next change. Ask for it before looking at the state: then no change falls between."""
        return self._waiting.setdefault(key, anyio.Event())
