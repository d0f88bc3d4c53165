"""The gateway's listening sockets. Several share one address, each with a queue of its own."""

import socket

from llmgwd.config import Address
from llmgwd.domain.errors import LlmgwError

BACKLOG = 4096


def check_free(address: Address) -> None:
    """Raises LlmgwError when anybody listens there."""
    try:
        _listen(address, shares=False).close()
    except OSError as error:
        raise LlmgwError(
            "gateway_address",
            f"gateway.listen {address} cannot be listened on: {error.strerror}",
            hint="end what listens there, or give another address in the configuration",
        ) from error


def listen(address: Address) -> socket.socket:
    """One more socket on this address. Raises OSError."""
    return _listen(address, shares=True)


def _listen(address: Address, *, shares: bool) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shares)
        listener.setblocking(False)
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
