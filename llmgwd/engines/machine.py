"""What this machine has: its memory, the limits that control groups set to it, and its GPUs."""

import os
from pathlib import Path

import psutil

from llmgwd.domain.room import Machine, Memory
from llmgwd.engines.gpus import VISIBLE, Gpus, visible

UNLIMITED_BYTES = 1 << 60
"""The first version of control groups writes a huge number where there is no limit."""


class ThisMachine:
    """Reads it anew each time. `root` is where /proc and /sys are found.

    Of its GPUs those that the daemon itself may use: an operator's CUDA_VISIBLE_DEVICES holds for its engines too.
    """

    def __init__(self, gpus: Gpus | None = None, root: Path = Path("/")) -> None:
        self._gpus = gpus
        self._root = root

    def read(self) -> Machine:
        """Blocks for some milliseconds."""
        memory = psutil.virtual_memory()
        host = Memory("", memory.total, memory.available)
        gpus = self._gpus.look() if self._gpus else ()
        return Machine((host, *limits(self._root)), visible(gpus, os.environ.get(VISIBLE)))


def limits(root: Path) -> tuple[Memory, ...]:
    """Of the control groups that this process is in, each that bounds its memory, the nearest first."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ()
    found: list[Memory] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += [memory for folder in _up(root / "sys/fs/cgroup", path) for memory in _second(folder)]
        elif "memory" in controllers.split(","):
            found += [memory for folder in _up(root / "sys/fs/cgroup/memory", path) for memory in _first(folder)]
    return tuple(found)


def _up(mount: Path, path: str) -> list[Path]:
    """The group's folder and those above it. In a container the path may be the host's, which is not there."""
    folder = mount / path.lstrip("/")
    return [each for each in (folder, *folder.parents) if each.is_relative_to(mount) and each.is_dir()]


def _second(folder: Path) -> list[Memory]:
    """Past memory.high a group is slowed down, past memory.max a process of it is killed."""
    bounds = [bound for name in ("memory.high", "memory.max") if (bound := _number(folder / name)) is not None]
    used = _number(folder / "memory.current")
    if not bounds or used is None:
        return []
    cached = _cached(folder, ("active_file", "inactive_file", "slab_reclaimable"))
    return [_bounded(folder, min(bounds), used, cached)]


def _first(folder: Path) -> list[Memory]:
    bound, used = _number(folder / "memory.limit_in_bytes"), _number(folder / "memory.usage_in_bytes")
    if bound is None or used is None or bound >= UNLIMITED_BYTES:
        return []
    return [_bounded(folder, bound, used, _cached(folder, ("total_active_file", "total_inactive_file")))]


def _bounded(folder: Path, bound: int, used: int, cached: int) -> Memory:
    return Memory(f" within the limit of control group {folder}", bound, max(0, bound - max(0, used - cached)))


def _cached(folder: Path, kinds: tuple[str, ...]) -> int:
    """What its use counts that the system takes back when memory is short."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    numbers = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return sum(int(numbers.get(kind, "0")) for kind in kinds)


def _number(file: Path) -> int | None:
    """None for a file that is not there or holds a word, such as `max`."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
