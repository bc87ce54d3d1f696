"""The lock of a root: a file in the root that only the user of the daemon and the superuser can open.

Whoever can open a file can also lock it. So the lock is not on the root itself, which any user who may read it could
lock (fault 96). It is not in a directory such as ``/run`` either, which containers and users that share a root need not
share. The file is never unlinked, because another daemon could lock it between the look at its name and the removal. A
killed daemon leaves the file behind, but no lock.

If the root is not writable, the root itself is locked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import ExitStack
from typing import Final

from ...protocol.discovery.watches import LOCK_FILE
from ...protocol.errors import ConfigError

MODE: Final = 0o600
#: O_NONBLOCK: opening a FIFO for reading would wait for a writer.
FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
#: Errors of making a file which mean that the root, or its file system, takes no new file.
_NOT_WRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT})
#: Errors of opening a file which mean that it is a link, a directory, a socket or a device.
_NO_FILE: Final = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})
#: How often to look again at a lock file that comes and goes.
_TRIES: Final = 8


class RootBusyError(Exception):
    """Another node has locked the root, in this process or in another one (fault 96). The text names the root."""


def lock(root: str, directory: int, locked: int | None) -> int:
    """Lock the directory ``root``, whose descriptor is ``directory``, and return the descriptor that holds the lock.

    If ``locked``, returned by an earlier call, still holds this lock, return it.

    Raises:
      RootBusyError: if another node has locked the directory.
      ConfigError: if the lock file is no regular file, is a link, or belongs to another user.
      OSError: if it cannot be opened or locked for another reason.
    """
    for _ in range(_TRIES):
        existing = _open(root, directory)
        descriptor = _make(directory) if existing is None else existing
        if descriptor is None:
            continue
        with ExitStack() as undo:
            undo.callback(os.close, descriptor)
            if locked is not None and os.path.samestat(os.fstat(locked), os.fstat(descriptor)):
                return locked
            was_loose = existing is not None and _check(root, existing)
            _flock(root, descriptor, was_loose=was_loose)
            if os.fstat(descriptor).st_nlink:
                undo.pop_all()
                return descriptor
    raise OSError(errno.EBUSY, f"the lock file {_path(root)} is removed again and again")


def _path(root: str) -> str:
    return os.path.join(root, LOCK_FILE)


def _open(root: str, directory: int) -> int | None:
    """Open the lock file; None if it does not exist."""
    try:
        return _open_to_lock(directory)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        owner = os.stat(LOCK_FILE, dir_fd=directory, follow_symlinks=False).st_uid
        if owner not in (0, os.geteuid()):
            raise _refused(root, f"belongs to user {owner}") from None
        raise RootBusyError(
            f"another plugind may run on {root}: its lock file {_path(root)} belongs to user {owner} and cannot be"
            " opened; run plugind as that user, or remove the file once no other plugind runs there"
        ) from error
    except OSError as error:
        if error.errno in _NO_FILE:
            raise _refused(root, "is no regular file") from None
        raise


def _open_to_lock(directory: int) -> int:
    try:
        # For writing, since NFS gives an exclusive lock on no other descriptor.
        return os.open(LOCK_FILE, os.O_RDWR | FLAGS, dir_fd=directory)
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
    return os.open(LOCK_FILE, os.O_RDONLY | FLAGS, dir_fd=directory)


def _make(directory: int) -> int | None:
    """Make the lock file; None if it exists by now. If it cannot be made, return a descriptor of the root."""
    try:
        descriptor = os.open(LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | FLAGS, MODE, dir_fd=directory)
    except FileExistsError:
        return None
    except OSError as error:
        if error.errno in _NOT_WRITABLE:
            return os.dup(directory)
        raise
    try:
        os.fchmod(descriptor, MODE)  # Whatever the umask is.
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check(root: str, descriptor: int) -> bool:
    """Check that the file is a lock of this user or of the superuser, and make sure that no other user can open it.

    Return whether other users could open it before.
    """
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise _refused(root, "is no regular file")
    if found.st_uid not in (0, os.geteuid()):
        raise _refused(root, f"belongs to user {found.st_uid}")
    if found.st_nlink > 1:
        # It may be the lock of another program, which would then wait for this daemon.
        raise _refused(root, "is a hard link of another file")
    if not stat.S_IMODE(found.st_mode) & ~MODE:
        return False
    try:
        os.fchmod(descriptor, MODE)
    except OSError:
        raise _refused(root, f"has mode {stat.S_IMODE(found.st_mode):04o}, so others may lock it") from None
    return True


def _flock(root: str, descriptor: int, *, was_loose: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if was_loose:
            raise RootBusyError(
                f"another process has locked {_path(root)}, perhaps one of another user's: the mode of that file let"
                f" others do so, and is {MODE:04o} now; end that process ('fuser {_path(root)}' names it), or choose"
                " another directory with --root"
            ) from None
        raise RootBusyError(
            f"another plugind runs on {root}: stop it, or choose another directory with --root"
        ) from None


def _refused(root: str, problem: str) -> ConfigError:
    return ConfigError(
        f"the lock file {_path(root)} {problem}: remove it once only trusted users may write to {root}, or name another"
        " directory with --root"
    )
