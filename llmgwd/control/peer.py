"""Who is on the other end of the control socket, as the kernel says."""

import pwd
import socket
import struct
import sys


def caller(connection: socket.socket) -> str:
    """The Unix user's name, or its uid in digits when it has none."""
    uid = _peer_uid(connection)
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _peer_uid(connection: socket.socket) -> int:
    if sys.platform == "linux":
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[1])
    # LOCAL_PEERCRED on macOS and the BSDs: struct xucred starts with its version, then the uid.
    credentials = connection.getsockopt(0, 1, 76)
    return int(struct.unpack_from("2I", credentials)[1])
