"""What the daemon and its gateway workers say to each other over the link socket.

The daemon listens; a worker connects, says `WorkerHello`, and gets `Routes` at once and after every change. It answers
each with `RoutesApplied`, after which no new request follows an older table. Samples travel as deltas in `Report`s,
numbered per worker; the worker keeps a report until `ReportTaken` names it and sends it again after a reconnect.

A worker of another `LINK_VERSION`, left by a daemon that was replaced, gets no routes; it can still hand in what it
counted. So whatever the version, these stay as they are: the frames, and the tags of `WorkerHello`, `Report` and
`ReportTaken` with those of their fields that have no default.
"""

import msgspec

from llmgwd.protocol.samples import Arm, ArmSample, LoadSample, LookSample

LINK_VERSION = 1


class AdapterRoute(msgspec.Struct, frozen=True, omit_defaults=True):
    """An adapter that an engine has loaded, and how a request asks for it."""

    name: str
    served_name: str
    """The model name that the request carries."""
    fields: tuple[tuple[str, str], ...] = ()
    """Members of its JSON body besides, name and JSON value."""


class ReplicaRoute(msgspec.Struct, frozen=True, omit_defaults=True):
    """One running engine that may be given requests."""

    id: str
    host: str
    port: int
    served_name: str
    """The model name this engine knows itself by; a request that asks for another name of the model is rewritten."""
    counts_usage: bool = True
    """Whether streams may ask this engine for `stream_options.include_usage`."""
    slots: int = 0
    """Requests that it decodes at once; 0: not known."""
    tls: bool = False
    authorization: str = ""
    """The header's value that it is asked with, in place of the client's; empty: it gets the client's."""
    adapters: tuple[AdapterRoute, ...] = ()


class ArmRoute(msgspec.Struct, frozen=True, omit_defaults=True):
    """One side of a model: the replicas that serve one revision."""

    revision: str
    replicas: tuple[ReplicaRoute, ...] = ()


class CanaryRoute(msgspec.Struct, frozen=True, omit_defaults=True):
    """The canary of a model. `id` is that canary's life, so that the samples of two canaries never meet."""

    id: str
    share: float
    """Percent of the model's requests, 0–100."""
    arm: ArmRoute
    look_s: float = 30.0
    """Length of a look: both arms are compared by the requests that arrived in the same one."""


class ModelRoute(msgspec.Struct, frozen=True, omit_defaults=True):
    """A name clients ask for, with what serves it."""

    name: str
    stable: ArmRoute
    aliases: tuple[str, ...] = ()
    canary: CanaryRoute | None = None
    fallbacks: tuple[str, ...] = ()
    """Names of the models that are asked in its place, in order, when it cannot answer."""
    adapters: tuple[str, ...] = ()
    """Each is asked for as `NAME:ADAPTER`, by any name of the model, and answered by those of stable that have it."""


class Routes(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The whole routing table; `version` only grows within one life of the daemon."""

    version: int
    models: tuple[ModelRoute, ...] = ()
    key_hashes: tuple[bytes, ...] | None = None
    """SHA-256 of each accepted API key; None when no key is asked for."""


class ReportTaken(msgspec.Struct, frozen=True, tag=True):
    """The daemon has this worker's reports up to `seq`."""

    seq: int


class Finish(msgspec.Struct, frozen=True, tag=True):
    """Take no new connections, let what is in flight end within `drain_s`, then exit."""

    drain_s: float
    is_replaced: bool = False
    """Another worker listens in its place: there is no hurry, and a client that is between two requests may send the
    next one, whose answer asks it to connect anew."""


class WorkerHello(msgspec.Struct, frozen=True, tag=True):
    """A worker presents itself. `worker` is unique for the life of that process.

    Its listening sockets come along as SCM_RIGHTS, so that another worker can go on with them: what waits in their
    queues is lost when the last process that has them closes them.
    """

    worker: str
    pid: int
    version: int = LINK_VERSION


class RoutesApplied(msgspec.Struct, frozen=True, tag=True):
    """New requests follow this table; `in_flight` counts, as in a report, those that still follow older ones."""

    version: int
    in_flight: dict[str, int] = {}


class LineLength(msgspec.Struct, frozen=True):
    """How many requests wait for a replica of one arm."""

    model: str
    arm: Arm
    waiting: int


class Report(msgspec.Struct, frozen=True, tag=True):
    """What happened since the last report.

    `in_flight` counts the requests per replica id, replicas that left the table included, so that the daemon sees a
    replica drain. A report is sent twice a second, and at once when a replica that left the table has none left.
    """

    seq: int
    routes_version: int
    in_flight: dict[str, int]
    samples: tuple[ArmSample, ...] = ()
    looks: tuple[LookSample, ...] = ()
    lines: tuple[LineLength, ...] = ()
    """The lines that are not empty."""
    loads: tuple[LoadSample, ...] = ()
    heard: tuple[str, ...] = ()
    """Ids of the replicas that answered, or went on answering, a request since the last report."""


ToWorker = Routes | ReportTaken | Finish
FromWorker = WorkerHello | RoutesApplied | Report
