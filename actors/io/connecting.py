"""Connecting to unix sockets, for programs that must start quickly, too: whatever the length of the path.

A ``sockaddr_un`` holds a path of 107 bytes. Longer ones are reached through a descriptor (fault 23).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from typing import Final

#: Bytes of the longest path that a ``sockaddr_un`` holds, without its NUL.
MAX_PATH: Final = 107

# Plain integers, since the enums of the socket module cost time on each connection.
_FAMILY: Final = int(socket.AF_UNIX)
_KIND: Final = int(socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def fits(path: str) -> bool:
    """Whether a ``sockaddr_un`` holds ``path``."""
    return len(path) <= MAX_PATH and (path.isascii() or len(os.fsencode(path)) <= MAX_PATH)


def stream_socket() -> socket.socket:
    """Return a new non-blocking unix stream socket."""
    return socket.socket(_FAMILY, _KIND)


def connect(connection: socket.socket, path: str) -> None:
    """Connect a non-blocking socket to ``path``, of any length. This never waits.

    Raises:
      BlockingIOError: if the backlog of the listener is full. The kernel has no event for when it has room.
      OSError: as connect(2) does.
    """
    if fits(path):
        connection.connect(path)
        return
    with entry(path) as short:
        if fits(short):
            connection.connect(short)
            return
    # The name alone is too long. Linux can connect to a descriptor of the socket's file, too.
    with _opened(path, os.O_PATH | os.O_NOFOLLOW) as descriptor:
        connection.connect(f"/proc/self/fd/{descriptor}")


def path_too_long(path: str) -> OSError:
    """Return the error for a path that is too long for a ``sockaddr_un`` and not reachable otherwise."""
    return OSError(errno.ENAMETOOLONG, f"a unix socket path holds at most {MAX_PATH} bytes", path)


@contextlib.contextmanager
def entry(path: str) -> Iterator[str]:
    """Yield a short name of the directory entry ``path``, valid within the block."""
    directory, name = os.path.split(path)
    with _opened(directory or ".", os.O_PATH | os.O_DIRECTORY) as descriptor:
        yield f"/proc/self/fd/{descriptor}/{name}"


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
