"""Connections to unix sockets: dialed by hand, because the ready-made ways are slow or wrong.

A unix socket connects at once or not at all, so the common case is three system calls and no wait.
`trio.open_unix_socket` hands out an unconnected stream when the backlog is full (fault 30).
"""

import errno
import os
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from ....protocol.wire.errors import DialError, DialFailure, Peer
from ....protocol.wire.limits import DEFAULT_LIMITS, Limits
from .channel import Channel
from .transport import SocketTransport, StreamTransport

MAX_PATH_BYTES: Final = 107
"""What `sockaddr_un` holds, less its NUL."""

_FAMILY: Final = int(socket.AF_UNIX)
_KIND: Final = int(socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
_FIRST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.05
_CREDENTIALS: Final = struct.Struct("3i")

_KINDS: Final = {
    errno.ENOENT: DialFailure.GONE,
    errno.ENOTDIR: DialFailure.GONE,
    errno.ECONNREFUSED: DialFailure.REFUSED,
    errno.EACCES: DialFailure.DENIED,
    errno.EPERM: DialFailure.DENIED,
    errno.EPROTOTYPE: DialFailure.NOT_A_STREAM,
    errno.EMFILE: DialFailure.EXHAUSTED,
    errno.ENFILE: DialFailure.EXHAUSTED,
    errno.ENAMETOOLONG: DialFailure.BAD_PATH,
}


async def dial(
    path: str,
    *,
    timeout: float,
    refused_grace: float = 1.0,
    authority: str = "localhost",
    limits: Limits = DEFAULT_LIMITS,
) -> Channel:
    """Connect to the unix stream socket at `path`, within `timeout` seconds.

    A socket that refuses is asked again for `refused_grace` seconds, as it may be between bind and listen
    (behaviour 12), and one with a full backlog until the deadline (fault 30). Does not wait, and so does not
    checkpoint, when the socket accepts at once. Raises DialError.
    """
    connection = _socket(path)
    try:
        problem = _try(connection, path)
        if problem is not None:
            await retry(path, problem, partial(_try, connection, path), timeout, refused_grace)
        peer = _peer(connection)
    except BaseException:
        connection.close()
        raise
    return Channel(SocketTransport(connection), authority=authority, limits=limits, peer=peer)


async def connect_stream(
    stream: trio.abc.Stream,
    *,
    authority: str = "localhost",
    limits: Limits = DEFAULT_LIMITS,
    peer: Peer | None = None,
) -> Channel:
    """A channel on a stream in memory; see `StreamTransport` for what the stream must be able to do."""
    await trio.lowlevel.checkpoint()
    return Channel(StreamTransport(stream), authority=authority, limits=limits, peer=peer)


def _socket(path: str) -> socket.socket:
    if not path or "\0" in path or path.startswith("@"):
        raise DialError(DialFailure.BAD_PATH, path, f"{path!r} names no socket in the file system")
    try:
        return socket.socket(_FAMILY, _KIND)
    except OSError as error:
        raise _failure(error, path) from error


async def retry(
    path: str, error: OSError, attempt: Callable[[], OSError | None], timeout: float, refused_grace: float
) -> None:
    """Make one `attempt` after another, while what failed may pass by itself; `error` is that of the first.

    The rule of `dial`, for whoever connects to `path`: a node in memory does so in its own way. Raises DialError.
    """
    began = trio.current_time()
    pause = _FIRST_PAUSE
    while True:
        if error.errno == errno.EAGAIN:
            left = began + timeout - trio.current_time()
            over = DialError(DialFailure.TIMED_OUT, path, f"the backlog of {path!r} was full for {timeout:g} s")
        elif error.errno == errno.ECONNREFUSED:
            left = began + min(refused_grace, timeout) - trio.current_time()
            over = DialError(DialFailure.REFUSED, path, f"nobody listens on {path!r}")
        else:
            raise _failure(error, path) from error
        if left <= 0:
            raise over from error
        await trio.sleep(min(pause, left))
        pause = min(pause * 2, _LONGEST_PAUSE)
        again = attempt()
        if again is None:
            return
        error = again


def _try(connection: socket.socket, path: str) -> OSError | None:
    """One attempt. Paths that `sockaddr_un` cannot hold go through a descriptor (fault 23)."""
    try:
        if len(path) <= MAX_PATH_BYTES and (path.isascii() or len(os.fsencode(path)) <= MAX_PATH_BYTES):
            connection.connect(path)
        else:
            _connect_long(connection, path)
    except OSError as error:
        return error
    return None


def _connect_long(connection: socket.socket, path: str) -> None:
    directory, name = os.path.split(path)
    descriptor = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        short = f"/proc/self/fd/{descriptor}/{name}"
        if len(os.fsencode(short)) > MAX_PATH_BYTES:
            # A name too long even so: the socket itself can be opened as a place.
            direct = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = direct
            short = f"/proc/self/fd/{descriptor}"
        connection.connect(short)
    finally:
        os.close(descriptor)


def _failure(error: OSError, path: str) -> DialError:
    kind = _KINDS.get(error.errno or 0, DialFailure.FAILED)
    return DialError(kind, path, f"cannot connect to {path!r}: {error.strerror or error}")


def _peer(connection: socket.socket) -> Peer:
    """Who called listen() at the other end (fault 40)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(raw))
