"""Process records that are written when there is room: a full disk must not end what serves."""

import logging

import anyio

from llmgwd.domain.processes import ProcessKind, ProcessRecord
from llmgwd.store.database import StoreError
from llmgwd.store.processes import Processes

log = logging.getLogger(__name__)

WRITE_AGAIN_S = 2.0


class PatientProcesses:
    """Takes every record, and every end of one. What cannot be written is logged, and tried again by `keep_written`.

    A daemon killed before that has left a process that is found by its mark, and ended at the next start.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._unwritten: dict[str, ProcessRecord | None] = {}
        """By id, in the order they came; None for one that is gone."""
        self._has_unwritten = anyio.Event()

    def all(self, kind: ProcessKind) -> list[ProcessRecord]:
        written = [each for each in self._processes.all(kind) if each.id not in self._unwritten]
        return [*written, *(each for each in self._unwritten.values() if each is not None and each.kind is kind)]

    def put(self, record: ProcessRecord) -> None:
        self._write(record.id, record)

    def forget(self, process: str) -> None:
        self._write(process, None)

    async def keep_written(self) -> None:
        """Writes what could not be written, until cancelled."""
        while True:
            await self._has_unwritten.wait()
            while self._unwritten:
                await anyio.sleep(WRITE_AGAIN_S)
                for process, record in list(self._unwritten.items()):
                    self._write(process, record)
            # Not before: what failed for another reason is still there when this is begun again.
            self._has_unwritten = anyio.Event()

    def _write(self, process: str, record: ProcessRecord | None) -> None:
        try:
            if record is None:
                self._processes.forget(process)
            else:
                self._processes.put(record)
        except StoreError as error:
            if process not in self._unwritten:
                log.error("a process is not noted yet, to be tried again id=%s why=%s", process, error.why)
            self._unwritten[process] = record
            self._has_unwritten.set()
        else:
            self._unwritten.pop(process, None)
