"""The processes that outlive the daemon, as they are written down for its next life."""

from enum import StrEnum
from typing import Protocol

import msgspec


class ProcessKind(StrEnum):
    REPLICA = "replica"
    WORKER = "worker"


class ProcessRecord(msgspec.Struct, frozen=True):
    """One running process. `identity` tells it from a later one with the same pid."""

    id: str
    kind: ProcessKind
    pid: int
    identity: str
    about: bytes
    """JSON: what its owner needs to go on with it."""
    reports: int = 0
    """Of a worker: the number of its last report whose samples are saved."""


class ProcessRecords(Protocol):
    """Where they are written; each call is on disk when it returns."""

    def all(self, kind: ProcessKind) -> list[ProcessRecord]: ...
    def put(self, record: ProcessRecord) -> None: ...
    def forget(self, process: str) -> None: ...
