"""Figures as people read them."""

from datetime import datetime

from llmgwd.protocol.views import OriginView

UNKNOWN = "–"


def size(size_bytes: float | None) -> str:
    """`98.4 MiB`: the units of server.yaml and of the daemon's own words."""
    if size_bytes is None:
        return UNKNOWN
    if size_bytes < 1024:
        return f"{size_bytes:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size_bytes /= 1024
        # 1023.95 would round to 1024.0: it is 1.0 of the next unit.
        if size_bytes < 1023.95 or unit == "TiB":
            break
    return f"{size_bytes:.1f} {unit}"


def duration(seconds: float) -> str:
    """Two units at most: `0.4 s`, `41 s`, `3 min 05 s`, `2 h 10 min`, `4 d 3 h`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def moment(at: datetime, now: datetime) -> str:
    """Local time, with the date unless it is today's."""
    local = at.astimezone()
    if local.date() == now.astimezone().date():
        return local.strftime("%H:%M:%S")
    return local.strftime("%Y-%m-%d %H:%M")


def percent(share: float | None) -> str:
    """A share in percent (0–100)."""
    return UNKNOWN if share is None else f"{round(share, 1):g} %"


def part(share: float | None) -> str:
    """A share as a part of one, shown in percent with one decimal so that columns line up."""
    return UNKNOWN if share is None else f"{share * 100:.1f} %"


def count(number: int) -> str:
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def short(revision: str | None) -> str:
    return revision[:7] if revision else UNKNOWN


def source(origin: OriginView) -> str:
    """`ORG/REPO@5f3a9c1`, or the path of local weights."""
    if origin.repo:
        return f"{origin.repo}@{short(origin.revision)}"
    return origin.path or ", ".join(origin.urls) or UNKNOWN


def move(before: OriginView, after: OriginView) -> str:
    """From one origin to another, naming the repository once when it is the same."""
    if before.repo and before.repo == after.repo:
        return f"{before.repo} {short(before.revision)} → {short(after.revision)}"
    return f"{source(before)} → {source(after)}"
