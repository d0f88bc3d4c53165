"""One replica: a running engine and what is known of it."""

from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc

from llmgwd.domain.catalog import Origin
from llmgwd.domain.errors import LlmgwError
from llmgwd.engines.templates import Engine, slots
from llmgwd.protocol.states import ReplicaState


@dataclass(frozen=True)
class ReplicaSpec:
    """What to run: a model's weights with its engine. `path` is what the engine is given as its weights."""

    model: str
    served_name: str
    origin: Origin
    path: Path
    engine: Engine
    engine_args: tuple[str, ...]

    @property
    def slots(self) -> int | None:
        """Requests that it decodes at once; None: not known."""
        return slots(self.engine, self.engine_args)


@dataclass
class Replica:
    """Owned by the fleet; others read it. `owner` is the catalog row it serves, which a promotion changes."""

    id: str
    owner: str
    spec: ReplicaSpec
    host: str
    port: int
    log: Path
    state: ReplicaState = ReplicaState.STARTING
    is_leaving: bool = False
    """Drained or stopped: it is never ready again and not restarted."""
    detail: str = ""
    failure: LlmgwError | None = None
    """Why its first start came to nothing."""
    process: anyio.abc.Process | None = None
    identity: str | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    """Set when its keeper is through and its process has ended."""

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None
