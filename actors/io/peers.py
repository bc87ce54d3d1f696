"""The peer of a unix socket. Programs that must start quickly import this, too."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import trio

#: The ids of users and groups are unsigned.
_UCRED: Final = struct.Struct("iII")


def ids_of_peer(connection: socket.socket | trio.socket.SocketType) -> tuple[int, int, int]:
    """Return pid, uid and gid of the process at the other end (SO_PEERCRED).

    Raises:
      OSError: if the kernel does not know it.
    """
    return _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
