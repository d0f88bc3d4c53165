"""One replica: a running engine and what is known of it."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import msgspec

from llmgwd.domain.catalog import Origin
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.processes import ProcessKind, ProcessRecord
from llmgwd.domain.room import Needs
from llmgwd.domain.urls import Place
from llmgwd.engines.adapters import AdapterOnDisk, adapter_words
from llmgwd.engines.templates import Engine, command, fitting, slots
from llmgwd.process import Process
from llmgwd.protocol.states import ReplicaState


@dataclass(frozen=True)
class ReplicaSpec:
    """What to run: a model's weights with its engine. `path` is what the engine is given as its weights, `projector`
    what lets them see, if they can.
    """

    model: str
    served_name: str
    origin: Origin
    path: Path
    engine: Engine
    engine_args: tuple[str, ...]
    projector: Path | None = None
    gpus: int = 0
    """How many it is to have to itself."""
    fit_check: bool = True
    """Whether it is started only where it fits."""
    lost_env: str = ""
    """Digest of the engine's environment, where that is not known: no engine of the configuration has it any more."""
    adapters: tuple[AdapterOnDisk, ...] = ()

    @property
    def slots(self) -> int | None:
        """Requests that it decodes at once; None: not known."""
        return slots(self.engine, self.engine_args)

    def command(self, host: str, port: str, replica: str, gpus: int) -> list[str]:
        """The command line of a replica there that was given so many GPUs."""
        values = {
            "path": os.fspath(self.path),
            "projector": os.fspath(self.projector) if self.projector else "",
            "name": self.served_name,
            "host": host,
            "port": port,
            "replica": replica,
            "revision": self.origin.revision or "",
            "gpus": str(max(1, gpus)),
        }
        adapters = adapter_words(self.engine, self.served_name, self.adapters)
        return command(self.engine, self.engine_args, values, adapters)

    def runs_like(self, other: "ReplicaSpec") -> bool:
        """Whether the running engine of one is as good as the other's: a canary's becomes its model's."""
        return self._runs == other._runs

    @property
    def _runs(self) -> tuple[object, ...]:
        env = self.lost_env or digest(self.engine.env)
        # Not the template itself: one that has learned to name a projector starts the same for weights without.
        argv = fitting(self.engine.argv, has_projector=self.projector is not None)
        adapters = adapter_words(self.engine, self.served_name, self.adapters)
        return (
            self.served_name,
            self.origin,
            self.path,
            self.projector,
            argv,
            env,
            adapters,
            self.engine_args,
            self.gpus,
        )


@dataclass
class Replica:
    """Owned by the fleet; others read it. `owner` is the catalog row it serves, which a promotion changes."""

    id: str
    owner: str
    spec: ReplicaSpec
    host: str
    port: int
    log: Path
    tls: bool = False
    key: str = field(default="", repr=False)
    """Of an external engine: what it is asked with."""
    state: ReplicaState = ReplicaState.STARTING
    keep_trying: bool = False
    """Whether a start that fails is tried again; one that was ready is restarted in any case."""
    was_ready: bool = False
    owns_port: bool = False
    """Whether it was seen to be this process that listens at the address."""
    is_leaving: bool = False
    """Drained or stopped: it is never ready again and not restarted."""
    detail: str = ""
    said: tuple[str, ...] = ()
    """The last lines of its log when it last failed, until it is ready again."""
    failures: int = 0
    """In a row."""
    needs: Needs | None = None
    """What it was given of memory, or took of it once it answered; None before."""
    gpus: tuple[str, ...] = ()
    """UUIDs of those it was given."""
    failure: LlmgwError | None = None
    """Why its first start came to nothing."""
    process: Process | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    """Set when its keeper is through, and its process has ended if it can be ended."""
    ending: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while it is tried once more to end its process."""

    @property
    def address(self) -> str:
        return self.place.url

    @property
    def place(self) -> Place:
        return Place(self.host, self.port, self.tls)

    @property
    def is_external(self) -> bool:
        """Whether somebody else runs it."""
        return self.spec.engine.is_external

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None


class _About(msgspec.Struct, frozen=True):
    """What is written down of a replica beside its process."""

    owner: str
    spec: ReplicaSpec
    host: str
    port: int
    log: Path
    was_ready: bool
    owns_port: bool
    needs: Needs | None = None
    gpus: tuple[str, ...] = ()
    env: str = ""
    """Digest of the engine's environment, which may hold secrets and is not written."""


def digest(env: Mapping[str, str]) -> str:
    """Tells environments apart without what they hold."""
    return hashlib.sha256(msgspec.json.encode(sorted(env.items()))).hexdigest()


def _read_path(kind: type, value: Any) -> Any:
    return kind(value)


_encode = msgspec.json.Encoder(enc_hook=os.fspath).encode
_decode = msgspec.json.Decoder(_About, dec_hook=_read_path).decode


def written(replica: Replica) -> ProcessRecord:
    """What the next life of the daemon needs to go on with it."""
    assert replica.process is not None
    spec = replica.spec
    about = _About(
        owner=replica.owner,
        spec=replace(spec, engine=msgspec.structs.replace(spec.engine, env={}), lost_env=""),
        host=replica.host,
        port=replica.port,
        log=replica.log,
        was_ready=replica.was_ready,
        owns_port=replica.owns_port,
        needs=replica.needs,
        gpus=replica.gpus,
        env=spec.lost_env or digest(spec.engine.env),
    )
    return ProcessRecord(replica.id, ProcessKind.REPLICA, replica.process.pid, replica.process.identity, _encode(about))


def read(record: ProcessRecord, engines: Iterable[Engine]) -> Replica | None:
    """The replica without its process, its environment from one of the engines; None for what another version wrote."""
    try:
        about = _decode(record.about)
    except msgspec.MsgspecError:
        return None
    env = next((each.env for each in engines if digest(each.env) == about.env), None)
    if env is None:
        spec = replace(about.spec, lost_env="" if about.env == digest({}) else about.env)
    else:
        spec = replace(about.spec, engine=msgspec.structs.replace(about.spec.engine, env=env))
    replica = Replica(record.id, about.owner, spec, about.host, about.port, about.log)
    replica.was_ready, replica.owns_port = about.was_ready, about.owns_port
    replica.needs, replica.gpus = about.needs, about.gpus
    return replica
