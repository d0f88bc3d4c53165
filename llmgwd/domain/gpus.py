"""One GPU at one moment."""

from collections.abc import Collection
from typing import NamedTuple


class GpuProcess(NamedTuple):
    """A process on a GPU. `pid` is as the driver knows it: on the host, where this runs in a container of its own."""

    pid: int
    used_bytes: int | None
    """None where the driver does not tell."""
    computes: bool = True
    """False for one that only draws, or computes by Vulkan."""


class Gpu(NamedTuple):
    number: int
    """Its index on this machine now, as the driver counts; `uuid` stays its own."""
    uuid: str
    name: str
    total_bytes: int
    free_bytes: int
    busy_percent: int | None = None
    """None where the driver does not tell."""
    processes: tuple[GpuProcess, ...] = ()

    @property
    def used_bytes(self) -> int:
        return self.total_bytes - self.free_bytes

    def held_by(self, pids: Collection[int]) -> int:
        """Bytes that those processes are known to use."""
        return sum(each.used_bytes or 0 for each in self.processes if each.pid in pids)

    @property
    def unexplained_bytes(self) -> int:
        """In use, by no process that the driver lists."""
        return self.used_bytes - sum(each.used_bytes or 0 for each in self.processes)
