"""What jobs and verbs work with: one of each, made at start."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import anyio

from llmgwd.config import Settings
from llmgwd.dataplane.dataplane import Dataplane
from llmgwd.domain.catalog import Adapter, Model, Origin
from llmgwd.domain.errors import refused
from llmgwd.engines.adapters import AdapterOnDisk, check_takes_adapters
from llmgwd.engines.fleet import Fleet
from llmgwd.engines.replica import ReplicaSpec
from llmgwd.engines.templates import Engine, find_engine, named
from llmgwd.jobs.feed import Feed
from llmgwd.protocol.states import EventKind
from llmgwd.protocol.views import EventView
from llmgwd.store.store import Store
from llmgwd.weights.choice import entry_file, projector_file
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.space import Space

log = logging.getLogger(__name__)


def _there(path: Path, fetched: bool) -> Path:
    if fetched and not path.exists():
        raise refused("weights_gone", f"the weights {path} are not on disk any more")
    return path


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Services:
    """The daemon's parts, wired. Only `settings` and `engines` are ever replaced, by a reload."""

    settings: Settings
    engines: Mapping[str, Engine]
    store: Store
    hub: Hub
    library: Library
    space: Space
    fleet: Fleet
    dataplane: Dataplane
    feed: Feed
    state_folder: Path
    notify: Callable[[EventView], None]
    now: Callable[[], datetime] = utc_now
    taking_out: defaultdict[str, anyio.Lock] = field(default_factory=lambda: defaultdict(anyio.Lock))
    """By canary id: held while it is being taken out."""
    unneeded: anyio.Event = field(default_factory=anyio.Event)
    """Set when there may be weights that nothing needs any more."""
    cleaning: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while weights are being removed; no step of a job is taken meanwhile."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when the daemon stops: what blocks in a thread looks at it."""

    def wish_clean_up(self) -> None:
        """Asks for what nothing needs any more to be removed from disk soon."""
        self.unneeded.set()

    def spec(self, model: Model, *, fetched: bool = True) -> ReplicaSpec:
        """What a replica of this catalog row runs. Raises LlmgwError when its engine is not there, or its weights that
        are `fetched`.

        A canary's replica has its model's adapters loaded, though nobody asks it for one: it runs as stable does, and
        has them when it is promoted.
        """
        engine, adapters = find_engine(model.engine, self.engines), self._adapters_of(model)
        if adapters:
            check_takes_adapters(model.engine, self.engines)
        return ReplicaSpec(
            model=model.name,
            served_name=named(engine, model.origin.served_name or model.served_name),
            origin=model.origin,
            path=self.weights_path(model.origin, fetched=fetched),
            engine=engine,
            engine_args=model.engine_args,
            projector=self.projector_path(model.origin, fetched=fetched),
            adapters=tuple(
                AdapterOnDisk(each.name, self.weights_path(each.origin, fetched=fetched)) for each in adapters
            ),
            gpus=model.gpus,
            fit_check=model.fit_check,
        )

    def _adapters_of(self, model: Model) -> tuple[Adapter, ...]:
        of = self.store.models.find(model.canary_of) if model.canary_of is not None else model
        return of.adapters if of is not None else ()

    def weights_path(self, origin: Origin, *, fetched: bool = True) -> Path:
        """The file or folder that an engine is given. Raises LlmgwError when it is `fetched` and not on disk."""
        if origin.urls:
            return Path()
        if origin.repo is None or origin.revision is None:
            return _there(Path(origin.path or ""), fetched)
        folder, entry = self.library.folder(origin.repo, origin.revision), entry_file(origin.files)
        return _there(folder / entry if entry else folder, fetched)

    def projector_path(self, origin: Origin, *, fetched: bool = True) -> Path | None:
        """The file that lets a GGUF model see, if one was chosen. Raises LlmgwError as `weights_path`."""
        entry, projector = entry_file(origin.files), projector_file(origin.files)
        if entry is None or projector is None:
            return None
        folder = self.weights_path(origin, fetched=fetched).parents[entry.count("/")]
        return _there(folder / projector, fetched)

    def log_event(
        self, by: str, what: EventKind, model: str, *, before: str = "", after: str = "", why: str = ""
    ) -> EventView:
        """Appends to the event log; to be called in the transaction of the change it tells of."""
        return self.store.events.log(self.now(), by, what, model, before=before, after=after, why=why)

    def announce(self, event: EventView) -> None:
        """Tells the log and whoever is to be notified; to be called once the transaction has committed."""
        log.info(
            "%s model=%s by=%s before=%s after=%s why=%s",
            event.what,
            event.model,
            event.by,
            event.before or "-",
            event.after or "-",
            event.why or "-",
        )
        self.notify(event)
