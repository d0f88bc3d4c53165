"""Ports for replicas: not of the range that the system hands to outgoing connections, and proven to be free."""

import random
import socket
from collections.abc import Container, Sequence
from pathlib import Path

import psutil

from llmgwd import process
from llmgwd.domain.errors import LlmgwError

FIRST, LAST = 20_000, 29_999
LOWEST, HIGHEST = 1_024, 65_535
FEWEST = 100
"""Ports that must be left of the usual ones; else those around the system's own range are taken."""
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(host: str, taken: Container[int]) -> int:
    """A port that nobody listens on and that is not in `taken`. Raises LlmgwError when there is none."""
    ports = usable(ephemeral())
    # Start anywhere: two daemons on one machine must not race for the same port.
    start = random.randrange(len(ports))  # noqa: S311
    for offset in range(len(ports)):
        port = ports[(start + offset) % len(ports)]
        if port not in taken and _binds(host, port):
            return port
    raise LlmgwError("no_port", f"no port between {ports[0]} and {ports[-1]} is free on {host}")


def usable(own: range) -> Sequence[int]:
    """The ports that replicas may have, where the system hands out its `own` to connections."""
    usual = [port for port in range(FIRST, LAST + 1) if port not in own]
    if len(usual) >= FEWEST:
        return usual
    around = [port for port in range(LOWEST, HIGHEST + 1) if port not in own]
    return around if len(around) >= FEWEST else range(FIRST, LAST + 1)


def ephemeral() -> range:
    """The system's own range; empty where it does not say."""
    try:
        first, last = map(int, EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        return range(0)
    return range(first, last + 1)


def is_taken(host: str, port: int) -> bool:
    """Whether somebody listens there; connections that ended a moment ago do not count."""
    return not _binds(host, port, over_old_connections=True)


def was_taken_before(pid: int, port: int) -> bool:
    """Whether who listens on that port was there before the process: then it is nothing that the process has started.

    An engine may leave listening to what it starts, such as a container's proxy, which is younger than itself.
    """
    try:
        listening = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    except psutil.Error:
        return False
    here = {each.pid for each in listening if each.laddr and each.laddr.port == port and each.pid is not None}
    born = _born(pid)
    return born is not None and any((_born(each) or born) < born for each in here)


def _born(pid: int) -> float | None:
    """Comes with the start of a process; None when it is gone. By the clock it would change as the clock is set."""
    name = process.identity(pid)
    return float(name.rpartition(":")[2]) if name else None


def _binds(host: str, port: int, *, over_old_connections: bool = False) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, over_old_connections)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
