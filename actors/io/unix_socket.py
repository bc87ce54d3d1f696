"""Unix sockets: binding, removing, accepting, and the credentials of the peer.

All code of plugind that listens on a path uses this module. What connects to one uses :mod:`.connecting`, or
:mod:`.exact_connect` for one certain file. So these rules of unix(7), which are easy to get wrong, stand in one place:

* A socket never has a wider mode than requested, not even between bind() and chmod().
* A socket in the way is removed only if nothing listens on it. At the end ours is removed only if it is still ours.
* accept() fails while the process has no descriptors left, and succeeds again later (fault 46).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from types import TracebackType
from typing import Final, Self

import trio

from ...protocol.values import value
from .accepting import OnExhausted, accept
from .connecting import connect, entry, fits, path_too_long, stream_socket
from .peers import ids_of_peer

_GID: Final = struct.Struct("I")
#: Python's socket module has no name for it, and returns at most 1024 bytes of an option.
_SO_PEERGROUPS: Final = 59
_MAX_GROUPS: Final = 256


@value
class Credentials:
    """The process at the other end of a unix socket, as the kernel reports it, in our namespaces.

    The side that accepts gets them as of connect(), the side that connects as of listen().
    """

    pid: int
    uid: int
    gid: int


def peer_credentials(connection: socket.socket | trio.socket.SocketType) -> Credentials:
    """Return the credentials of the process at the other end of ``connection`` (SO_PEERCRED)."""
    return Credentials(*ids_of_peer(connection))


def peer_groups(connection: socket.socket | trio.socket.SocketType) -> frozenset[int]:
    """Return the supplementary groups of the process at the other end of ``connection`` (SO_PEERGROUPS).

    Empty for a process with more than 256 groups, because Python does not get longer lists.
    """
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_GROUPS * _GID.size)
    except OSError:
        return frozenset()
    return frozenset(gid for (gid,) in _GID.iter_unpack(packed))


def listens(path: str) -> bool:
    """Whether somebody listens at ``path``; True also if the connect fails for another reason."""
    with stream_socket() as probe:
        try:
            connect(probe, path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            # The caller's own connection will report the error.
            return True
    return True


@value
class UnixListener:
    """A socket that listens on ``path``; a context manager that closes it."""

    path: str
    socket: trio.socket.SocketType
    #: None if the file was removed before it was looked at, by a starting daemon that emptied its directory.
    _bound: os.stat_result | None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def accept(self, on_exhausted: OnExhausted | None = None) -> trio.socket.SocketType:
        """Wait for the next connection, as :func:`.accepting.accept` does."""
        return await accept(self.socket, on_exhausted)

    def is_in_place(self) -> bool:
        """Whether the file at the path is still this socket's; True if that cannot be found out."""
        try:
            return self._bound is not None and os.path.samestat(os.lstat(self.path), self._bound)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Remove the file if it is still this socket's, and stop listening. Can be called again."""
        if self.socket.fileno() < 0:
            return
        # A file that cannot be removed stays, and the next listener finds it stale. While the socket is open, no other
        # file gets its inode, so the comparison is exact.
        with contextlib.suppress(OSError):
            if self._bound is not None and os.path.samestat(os.lstat(self.path), self._bound):
                os.unlink(self.path)
        self.socket.close()


def listen(
    path: str, *, mode: int = 0o600, backlog: int = 128, remove_stale: bool = False, any_length: bool = False
) -> UnixListener:
    """Bind ``path`` with ``mode`` and listen on it.

    With ``remove_stale`` a socket at ``path`` on which nothing listens is removed first. With ``any_length`` the path
    may be longer than 107 bytes, but then only clients that use :func:`connect` can reach it.

    Raises:
      OSError: ENAMETOOLONG if the path is too long, EADDRINUSE if another process listens or, without ``remove_stale``,
        anything exists, EEXIST if what exists is no socket, and any error of bind(2).
    """
    if not (fits(path) or any_length):
        raise path_too_long(path)
    if remove_stale:
        _remove_stale(path)
    try:
        return _bind(path, mode, backlog)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def _bind(path: str, mode: int, backlog: int) -> UnixListener:
    with contextlib.ExitStack() as undo:
        made = undo.enter_context(stream_socket())
        # Linux gives the file the mode of the descriptor, less the umask, so it is never wider than requested.
        os.fchmod(made.fileno(), mode)
        _bind_name(made, path)
        undo.callback(_unlink_if_there, path)
        made.listen(backlog)
        bound: os.stat_result | None = None
        with contextlib.suppress(FileNotFoundError):
            bound = os.lstat(path)
            if stat.S_IMODE(bound.st_mode) != mode:
                os.chmod(path, mode)
        listener = UnixListener(path, trio.socket.from_stdlib_socket(made), bound)
        undo.pop_all()
        return listener


def _bind_name(made: socket.socket, path: str) -> None:
    if fits(path):
        made.bind(path)
        return
    with entry(path) as short:
        if not fits(short):
            raise path_too_long(path)
        made.bind(short)


def _remove_stale(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(errno.EEXIST, "something that is no socket is in the way", path)
    with stream_socket() as probe:
        try:
            connect(probe, path)
        except ConnectionRefusedError:
            _unlink_if_there(path)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            # A full backlog, or another kind of socket: somebody listens.
            if error.errno not in (errno.EAGAIN, errno.EPROTOTYPE):
                raise OSError(error.errno, error.strerror, path) from error
    raise OSError(errno.EADDRINUSE, "another process listens there", path)


def _unlink_if_there(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
