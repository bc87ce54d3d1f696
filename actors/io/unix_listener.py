"""A listening unix socket that only its owner may use, made and removed without ever being in another's way."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import stat
import struct

import attrs
import trio

from plugind.protocol.errors import ConfigError
from plugind.protocol.text import escaped

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
        """Stop listening, and remove the file if it is still this one."""
        self.socket.close()
        with contextlib.suppress(FileNotFoundError):
            if _inode(os.lstat(self.path)) == self.inode:
                os.unlink(self.path)


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def listen(path: str, *, backlog: int = 128) -> UnixListener:
    """Listen at ``path`` with mode 0600; its directory is made, with mode 0700, where it is missing.

    The socket is bound under a name of its own, gets its mode, listens, and is only then renamed into place: nobody
    meets it half made, and a stale file of a dead daemon is replaced in one step.

    Raises:
      ConfigError: if something that lives, or is no socket, is there, or the directory cannot be written.
    """
    directory, name = os.path.split(os.path.abspath(path))
    if not name or "\0" in path:
        raise ConfigError(f"the status socket {escaped(path)!r} is not the path of a file; give one with --status")
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        at = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _refuse_what_lives(path, at, name)
            return _bind(path, at, name, backlog)
        finally:
            os.close(at)
    except OSError as error:
        raise ConfigError(
            f"cannot make the status socket {escaped(path)}: {error.strerror or error};"
            " give another path with --status or PLUGIND_STATUS"
        ) from error


def _reach(at: int, name: str) -> str:
    """A path short enough for a ``sockaddr_un``, however deep the directory lies (fault 23)."""
    return f"/proc/self/fd/{at}/{name}"


def _refuse_what_lives(path: str, at: int, name: str) -> None:
    try:
        mode = os.lstat(name, dir_fd=at).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{escaped(path)} exists and is no socket; remove it or give another path with --status")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        outcome = probe.connect_ex(_reach(at, name))
    if outcome not in (errno.ECONNREFUSED, errno.ENOENT):
        raise ConfigError(
            f"another process answers at {escaped(path)}; stop it, or give this one another path with --status"
        )


def _bind(path: str, at: int, name: str, backlog: int) -> UnixListener:
    # Two containers on one directory may share a process id, so the name is by chance.
    temporary = f".{secrets.token_hex(4)}.sock"
    bare = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bare.bind(_reach(at, temporary))
        os.chmod(temporary, 0o600, dir_fd=at)
        bare.listen(backlog)
        inode = _inode(os.lstat(temporary, dir_fd=at))
        os.rename(temporary, name, src_dir_fd=at, dst_dir_fd=at)
    except BaseException:
        bare.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=at)
        raise
    return UnixListener(os.path.abspath(path), trio.socket.from_stdlib_socket(bare), inode)
