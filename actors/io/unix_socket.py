"""A listening unix socket that only its owner may use, made and removed without ever being in another's way."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator

import attrs
import trio

from ...protocol.errors import ConfigError
from ...protocol.text import escaped

#: Bytes that a path in a ``sockaddr_un`` can have (unix(7); the terminating NUL is not among them).
MAX_PATH = 107


@attrs.frozen
class Peer:
    """Who is at the other end, by SO_PEERCRED."""

    pid: int
    uid: int


def peer_of(connection: socket.socket | trio.socket.SocketType) -> Peer:
    """Return who holds the other end of a unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return Peer(pid, uid)


def own_uid() -> int:
    """The user id that this process acts as."""
    return os.geteuid()


@attrs.frozen
class UnixListener:
    """A socket that listens at ``path``, and which file it is."""

    path: str
    socket: trio.socket.SocketType
    inode: tuple[int, int]

    def close(self) -> None:
        """Stop listening, and remove the file if it is still this one. May be repeated."""
        if self.socket.fileno() < 0:
            return
        self.socket.close()
        with contextlib.suppress(OSError), _directory_of(self.path) as (at, name, reach):
            # A successor may have been given the same inode; but it answers, and this one no longer does.
            if _inode(os.lstat(name, dir_fd=at)) == self.inode and not _answers(reach):
                os.unlink(name, dir_fd=at)


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def listen(path: str, *, backlog: int = 128) -> UnixListener:
    """Listen at ``path`` with mode 0600; its directory is made, with mode 0700, where it is missing.

    A stale file of a dead daemon is replaced. The socket has its mode from the moment that it is there.

    Raises:
      ConfigError: if something that lives, or is no socket, is there, or the directory cannot be written.
    """
    whole = os.path.abspath(path)
    if path.endswith("/") or "\0" in path or not path:
        raise ConfigError(f"the status socket {escaped(path)!r} is not the path of a file; give one with --status")
    try:
        os.makedirs(os.path.dirname(whole), mode=0o700, exist_ok=True)
        with _directory_of(whole) as (at, name, reach):
            _remove_what_is_dead(whole, at, name, reach)
            return _bind(whole, at, name, reach, backlog)
    except OSError as error:
        raise ConfigError(
            f"cannot make the status socket {escaped(path)}: {error.strerror or error};"
            " give another path with --status or PLUGIND_STATUS"
        ) from error


@contextlib.contextmanager
def _directory_of(path: str) -> Iterator[tuple[int, str, str]]:
    """Open the directory of ``path``; also yield the file's name, and a path short enough to connect to (fault 23)."""
    directory, name = os.path.split(path)
    at = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield at, name, path if len(os.fsencode(path)) <= MAX_PATH else f"/proc/self/fd/{at}/{name}"
    finally:
        os.close(at)


def _remove_what_is_dead(path: str, at: int, name: str, reach: str) -> None:
    try:
        mode = os.lstat(name, dir_fd=at).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{escaped(path)} exists and is no socket; remove it or give another path with --status")
    if _answers(reach):
        raise ConfigError(
            f"another process answers at {escaped(path)}; stop it, or give this one another path with --status"
        )
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=at)


def _answers(reach: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        return probe.connect_ex(reach) not in (errno.ECONNREFUSED, errno.ENOENT)


def _bind(path: str, at: int, name: str, reach: str, backlog: int) -> UnixListener:
    bare = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Of the whole process, but for one system call; a chmod after bind would leave a moment in which others connect.
    before = os.umask(0o177)
    try:
        bare.bind(reach)
    except BaseException:
        bare.close()
        raise
    finally:
        os.umask(before)
    try:
        inode = _inode(os.lstat(name, dir_fd=at))
        bare.listen(backlog)
        return UnixListener(path, trio.socket.from_stdlib_socket(bare), inode)
    except BaseException:
        bare.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=at)
        raise
