"""Connections to one specific socket file, and never to another one that has replaced it (fault 41).

Between a look at a path and connect() the socket may be replaced, and ext4 gives the new one the inode number of the
old one. So the file is opened without following a link, its identity is compared with that of the look, and the
connection is made to the open file through ``/proc/self/fd``. Even if it is renamed or removed in the meantime, this
reaches the same inode; a removed socket refuses. The path may have any length (fault 23).

Where ``/proc`` cannot be had, the connection is made by path, and what is at the path afterwards is compared.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import stat

from ...protocol.identity import Identity
from .file_identity import identity_at, identity_of
from .unix_socket import fits, path_too_long


def connect_to(connection: socket.socket, path: str, identity: Identity, *, follow_symlinks: bool = False) -> None:
    """Connect a socket that does not block to the file ``identity``, if that is at ``path``, and to no other.

    With ``follow_symlinks``, a link at ``path`` stands for the file that it leads to.

    Raises:
      BlockingIOError: if the backlog of the listener is full.
      OSError: ESTALE if another file is at ``path``, and whatever open(2) and connect(2) say.
    """
    if not can_connect_to_descriptors():
        _connect_and_compare(connection, path, identity, follow_symlinks=follow_symlinks)
        return
    descriptor = _open_file(path, identity, follow_symlinks=follow_symlinks)
    try:
        connection.connect(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


@functools.cache
def can_connect_to_descriptors() -> bool:
    """Whether ``/proc`` leads to the open files of this process: it may not be mounted, or not be ours to read."""
    descriptor = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        return os.path.samestat(os.stat(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor))
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _open_file(path: str, identity: Identity, *, follow_symlinks: bool) -> int:
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if identity_of(descriptor).is_same(identity):
            return descriptor
        is_link = stat.S_ISLNK(os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    if is_link and follow_symlinks:
        # The look found that the file with this identity is inside of the root.
        return _open_file(os.path.realpath(path, strict=True), identity, follow_symlinks=False)
    raise _replaced(path)


def _connect_and_compare(connection: socket.socket, path: str, identity: Identity, *, follow_symlinks: bool) -> None:
    if not fits(path):
        raise path_too_long(path)
    target = os.path.realpath(path, strict=True) if follow_symlinks else path
    connection.connect(target)
    if not identity_at(os.lstat(target), target).is_same(identity):
        raise _replaced(path)


def _replaced(path: str) -> OSError:
    return OSError(errno.ESTALE, "another file is in its place", path)
