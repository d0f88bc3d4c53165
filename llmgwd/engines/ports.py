"""Ports for replicas: below the range that the system hands to outgoing connections, and proven to be free."""

import random
import socket
from collections.abc import Container

from llmgwd.domain.errors import LlmgwError

FIRST, LAST = 20_000, 29_999


def free_port(host: str, taken: Container[int]) -> int:
    """A port that nobody listens on and that is not in `taken`. Raises LlmgwError when there is none."""
    # Start anywhere: two daemons on one machine must not race for the same port.
    start = random.randrange(FIRST, LAST + 1)  # noqa: S311
    for offset in range(LAST - FIRST + 1):
        port = FIRST + (start - FIRST + offset) % (LAST - FIRST + 1)
        if port not in taken and _binds(host, port):
            return port
    raise LlmgwError("no_port", f"no port between {FIRST} and {LAST} is free on {host}")


def is_taken(host: str, port: int) -> bool:
    """Whether somebody listens there; connections that ended a moment ago do not count."""
    return not _binds(host, port, over_old_connections=True)


def _binds(host: str, port: int, *, over_old_connections: bool = False) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, over_old_connections)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
