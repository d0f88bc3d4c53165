"""Processes are written down until they are seen to have ended."""

from pathlib import Path

import msgspec

from llmgwd.domain.processes import ProcessKind, ProcessRecord
from llmgwd.store.store import Store

REPLICA = ProcessRecord("chat-1", ProcessKind.REPLICA, 7, "boot:70", b'{"owner":"chat"}')
WORKER = ProcessRecord("w0-a", ProcessKind.WORKER, 8, "boot:80", b"{}")


def test_what_was_put_is_there_in_the_next_life_by_kind_until_it_is_forgotten(tmp_path: Path) -> None:
    first = Store(tmp_path / "llmgw.db")
    for each in (REPLICA, WORKER):
        first.processes.put(each)
    first.close()
    store = Store(tmp_path / "llmgw.db")
    assert store.processes.all(ProcessKind.REPLICA) == [REPLICA]
    assert store.processes.all(ProcessKind.WORKER) == [WORKER]
    store.processes.forget("chat-1")
    store.processes.forget("nobody")
    assert store.processes.all(ProcessKind.REPLICA) == []


def test_putting_again_replaces_all_but_the_reports_that_are_saved(tmp_path: Path) -> None:
    store = Store(tmp_path / "llmgw.db")
    store.processes.put(WORKER)
    store.processes.save_reports({"w0-a": 5, "w9-gone": 3})
    again = msgspec.structs.replace(WORKER, pid=9, identity="boot:90")
    store.processes.put(again)
    assert store.processes.all(ProcessKind.WORKER) == [msgspec.structs.replace(again, reports=5)]
