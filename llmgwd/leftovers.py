"""What runs from a state folder, known by its record or by its mark, ended."""

import logging
from collections.abc import Collection
from pathlib import Path

import anyio

from llmgwd import process
from llmgwd.domain.processes import ProcessKind, ProcessRecord, ProcessRecords

log = logging.getLogger(__name__)


async def end_left(state: Path, records: ProcessRecords, grace_s: float, keep: Collection[str] = ()) -> None:
    """Ends every process of this state folder, with what ended ones left behind, but those of the children in `keep`.

    The record of one that does not end is kept, for the next start.
    """
    written = [each for kind in ProcessKind for each in records.all(kind) if each.id not in keep]
    async with anyio.create_task_group() as tasks:
        for record in written:
            tasks.start_soon(_end, state, records, record, grace_s)
        tasks.start_soon(process.end_marked, state, grace_s, {*keep, *(each.id for each in written)})


async def _end(state: Path, records: ProcessRecords, record: ProcessRecord, grace_s: float) -> None:
    left = process.left_of(record.pid, record.identity, process.Mark(state, record.id))
    if left.is_running:
        log.info("ending what was left running id=%s pid=%d", record.id, record.pid)
    if await left.end(grace_s):
        records.forget(record.id)
    else:
        log.error("process does not end id=%s pid=%d", record.id, record.pid)
