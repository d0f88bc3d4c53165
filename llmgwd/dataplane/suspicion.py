"""Which canaries gave a bad answer since it was last asked: they are looked at without waiting for the next look."""

from collections.abc import Iterable

import anyio


class Suspicion:
    """Filled by what workers report, taken by the watch loop."""

    def __init__(self) -> None:
        self._canaries: set[str] = set()
        self._arisen = anyio.Event()

    def add(self, canaries: Iterable[str]) -> None:
        self._canaries.update(canaries)
        if self._canaries:
            self._arisen.set()

    async def arisen(self) -> None:
        """Waits until there is any."""
        await self._arisen.wait()

    def take(self) -> frozenset[str]:
        """The canaries' ids, from now on forgotten."""
        taken, self._canaries, self._arisen = frozenset(self._canaries), set(), anyio.Event()
        return taken
