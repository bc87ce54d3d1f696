"""Connections to one specific socket file, and never to another one that has replaced it (fault 41).

Between a look at a path and connect() the socket may be replaced, and ext4 gives the new one the inode number of the
old one. So the file is opened beneath its root without following a link (:mod:`.beneath`), its identity is compared
with that of the look, and the connection is made to the open file through ``/proc/self/fd``. This reaches that inode
even if it was renamed or removed; a removed socket refuses. The path may have any length (fault 23).

Without ``/proc``, the connection is made by path, and the file at the path is compared before and after it.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import stat
from collections.abc import Sequence

from ...protocol.identity import Identity
from .beneath import PATH_FLAGS, open_beneath, resolve, root_of
from .connecting import fits, path_too_long
from .file_identity import identity_of


def connect_to(
    connection: socket.socket,
    path: str,
    identity: Identity,
    *,
    roots: Sequence[str] = (),
    follow_symlinks: bool = False,
) -> None:
    """Connect a non-blocking socket to the file ``identity`` at ``path``, and to no other.

    If ``path`` lies below one of ``roots``, no directory on the way may be a link. With ``follow_symlinks``, a link at
    ``path`` itself stands for its target.

    Raises:
      BlockingIOError: if the backlog of the listener is full.
      OSError: ESTALE if another file is at ``path``, and any error of open(2) and connect(2).
    """
    path, descriptor = _open_file(path, identity, root_of(path, roots), follow_symlinks=follow_symlinks)
    try:
        if can_connect_to_descriptors():
            connection.connect(f"/proc/self/fd/{descriptor}")
            return
    finally:
        os.close(descriptor)
    _connect_and_compare(connection, path, identity)


@functools.cache
def can_connect_to_descriptors() -> bool:
    """Whether ``/proc`` leads to the open files of this process; it may not be mounted, or not be readable."""
    descriptor = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        return os.path.samestat(os.stat(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor))
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _open_file(path: str, identity: Identity, root: str | None, *, follow_symlinks: bool) -> tuple[str, int]:
    """Return the path of the file ``identity``, which may be the target of a link, and a descriptor of the file."""
    descriptor = _open(path, root)
    try:
        if identity_of(descriptor).is_same(identity):
            return path, descriptor
        is_link = stat.S_ISLNK(os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    if is_link and follow_symlinks:
        target = os.path.realpath(path, strict=True) if root is None else resolve(root, path)
        return _open_file(target, identity, root, follow_symlinks=False)
    raise _replaced(path)


def _open(path: str, root: str | None) -> int:
    return os.open(path, PATH_FLAGS) if root is None else open_beneath(root, path)


def _connect_and_compare(connection: socket.socket, path: str, identity: Identity) -> None:
    if not fits(path):
        raise path_too_long(path)
    connection.connect(path)
    descriptor = os.open(path, PATH_FLAGS)
    try:
        if not identity_of(descriptor).is_same(identity):
            raise _replaced(path)
    finally:
        os.close(descriptor)


def _replaced(path: str) -> OSError:
    return OSError(errno.ESTALE, "another file is in its place", path)
