"""All that the daemon remembers, by noun."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmgwd.store.canaries import Canaries
from llmgwd.store.database import open_database, transaction
from llmgwd.store.events import Events
from llmgwd.store.footprints import Footprints
from llmgwd.store.jobs import Jobs
from llmgwd.store.models import Models
from llmgwd.store.processes import Processes


class Store:
    """Owned by the daemon's event loop; used from no other thread.

    A write outside `transaction()` commits by itself.
    """

    def __init__(self, path: Path) -> None:
        self._connection = open_database(path)
        self.models = Models(self._connection)
        self.canaries = Canaries(self._connection)
        self.jobs = Jobs(self._connection)
        self.events = Events(self._connection)
        self.processes = Processes(self._connection)
        self.footprints = Footprints(self._connection)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written inside is on disk when the block ends, or not at all."""
        with transaction(self._connection):
            yield

    def close(self) -> None:
        self._connection.close()
