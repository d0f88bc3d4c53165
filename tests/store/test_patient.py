"""Process records on a disk that is full for a while."""

from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from llmgwd.domain.processes import ProcessKind, ProcessRecord
from llmgwd.store import patient
from llmgwd.store.patient import PatientProcesses
from llmgwd.store.store import Store

pytestmark = pytest.mark.anyio
FIRST = ProcessRecord("chat-1", ProcessKind.REPLICA, 10, "boot:1", b"{}")
SECOND = ProcessRecord("chat-2", ProcessKind.REPLICA, 11, "boot:2", b"{}")


async def test_what_cannot_be_written_is_known_all_the_same_and_written_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patient, "WRITE_AGAIN_S", 0.01)
    store = Store(tmp_path / "llmgw.db")
    records = PatientProcesses(store.processes)
    records.put(FIRST)
    store._connection.execute("PRAGMA query_only = ON")
    records.forget(FIRST.id)
    records.put(SECOND)
    again = msgspec.structs.replace(SECOND, pid=12)
    records.put(again)
    assert records.all(ProcessKind.REPLICA) == [again]
    assert records.all(ProcessKind.WORKER) == []
    assert store.processes.all(ProcessKind.REPLICA) == [FIRST]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(records.keep_written)
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        assert store.processes.all(ProcessKind.REPLICA) == [FIRST]
        store._connection.execute("PRAGMA query_only = OFF")
        with anyio.fail_after(20):
            while store.processes.all(ProcessKind.REPLICA) != [again]:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    store.close()
