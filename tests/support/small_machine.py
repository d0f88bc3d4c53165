"""A machine of any size, and the real daemon on one: `python -m tests.support.small_machine …`.

The daemon's is described by the file that LLMGW_TEST_MACHINE names, which a test may rewrite at any time. What the
processes of the fleet take is really taken from it.
"""

import os
import re
import sys
from pathlib import Path

import msgspec
import psutil

from llmgwd import foreground, process
from llmgwd.domain.gpus import Gpu
from llmgwd.domain.room import Machine, Memory
from tests.support.house import House

FILE_VARIABLE = "LLMGW_TEST_MACHINE"
MIB, GIB = 1 << 20, 1 << 30
PLENTY = 64 * GIB


class Size(msgspec.Struct):
    """total_bytes is what is there for the replicas and all else."""

    total_bytes: int = PLENTY
    gpus: tuple[Gpu, ...] = ()


WORKER = re.compile(r"w\d+-[0-9a-f]+")
"""A gateway worker, by its mark."""


class SmallMachine:
    """Without a state folder nothing is taken by processes."""

    def __init__(self, size: Size | None = None, state: Path | None = None) -> None:
        self.size = size or Size()
        self._state = state

    def read(self) -> Machine:
        found = process.marked(self._state) if self._state else []
        free = self.size.total_bytes - sum(_taken(each.pid) for each in found if not WORKER.fullmatch(each.child))
        return Machine((Memory("", self.size.total_bytes, max(0, free)),), self.size.gpus)


class MachineOfFile(SmallMachine):
    def read(self) -> Machine:
        self.size = msgspec.json.decode(Path(os.environ[FILE_VARIABLE]).read_bytes(), type=Size)
        return super().read()


def _taken(pid: int) -> int:
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss - memory.shared)


def put_on(house: House, size: Size) -> None:
    """The house's next daemon is on a machine of this size, and one that runs on such a one is from now on."""
    file = house.root / "machine.json"
    house.program = [sys.executable, "-m", "tests.support.small_machine"]
    house.own_env[FILE_VARIABLE] = str(file)
    file.with_suffix(".new").write_bytes(msgspec.json.encode(size))
    file.with_suffix(".new").replace(file)


if __name__ == "__main__":
    sys.exit(foreground.run(machine=MachineOfFile(state=Path(os.environ["LLMGW_STATE_DIR"]))))
