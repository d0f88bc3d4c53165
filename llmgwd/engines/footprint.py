"""What a replica's processes take of the host's memory."""

from pathlib import Path
from typing import NamedTuple

import psutil


class Taken(NamedTuple):
    """private_bytes: what would be free without them; mapped_bytes: how much of the weights' files they have mapped."""

    private_bytes: int
    mapped_bytes: int


def group(pid: int) -> list[psutil.Process]:
    """The process and all its children; none when it is gone."""
    try:
        leader = psutil.Process(pid)
        return [leader, *leader.children(recursive=True)]
    except psutil.Error:
        return []


def measure(pid: int, weights: Path) -> Taken | None:
    """Reads all mappings of the group; None where the system does not tell. Blocks for up to some 100 ms.

    weights is the folder that their files are mapped from. Pages that several processes of a group share are counted in
    parts (PSS), which add up. What of the weights is mapped is not private, however few map it now: it stays in memory
    for the next to come.
    """
    private, mapped, files = 0, 0, f"{weights.resolve()}/"
    try:
        for each in group(pid):
            here = 0
            for region in each.memory_maps():
                if region.path.startswith(files):
                    here += region.rss
                else:
                    private += region.pss + region.swap
            mapped = max(mapped, here)
    except (psutil.Error, OSError, AttributeError):
        return None
    return Taken(private, mapped) if private else None


def private_now(pid: int) -> int:
    """Roughly, and at once: what has been put into the group's memory and is not a file's."""
    total = 0
    for each in group(pid):
        try:
            memory = each.memory_info()
        except psutil.Error:
            continue
        total += max(0, memory.rss - getattr(memory, "shared", 0))
    return total
