"""Who is at the other end of a unix socket, for programs that must start quickly, too."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import trio

#: The numbers of users and groups have no sign.
_UCRED: Final = struct.Struct("iII")


def ids_of_peer(connection: socket.socket | trio.socket.SocketType) -> tuple[int, int, int]:
    """Return the pid, the uid and the gid of the process at the other end (SO_PEERCRED).

    Raises:
      OSError: if the kernel does not tell.
    """
    return _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
