"""The lock of a root: a file inside of it, which only the user of the daemon and the superuser can open.

Whoever can open a file can also lock it. So the lock is not on the root itself, where any user who may read it could
keep every daemon from starting (fault 96), and not in a directory such as ``/run``, which containers and users that
share a root need not share. The file is never unlinked: between the look at a name and its removal another daemon could
have locked it. A killed daemon leaves the file behind, but no lock.

Where the file cannot be made, because the root is not writable, the root itself is locked.
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
#: O_NONBLOCK: to open a FIFO for reading would wait for a writer.
FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
#: Errors of making a file that say that the root, or its file system, takes no new file.
_NOT_WRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT})
#: Errors of opening what is there that say that it is no regular file: a link, a directory, a socket or a device.
_NO_FILE: Final = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})
#: How often a lock file that comes and goes is looked at anew; more often than that, somebody is playing.
_TRIES: Final = 8


class RootBusyError(Exception):
    """Another node has locked the root, in this process or in another one (fault 96). The text names the root."""


def lock(root: str, directory: int, locked: int | None) -> int:
    """Lock the directory ``root``, whose descriptor is ``directory``, and return the descriptor that holds the lock.

    That is ``locked``, the one of an earlier call, if it still holds the lock of this directory.

    Raises:
      RootBusyError: if another node has locked it.
      ConfigError: if the lock file is none of a daemon's: no regular file, a link, or another user's.
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
    """Open the lock file; None if there is none."""
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
        # For writing, since NFS gives no exclusive lock on any other descriptor.
        return os.open(LOCK_FILE, os.O_RDWR | FLAGS, dir_fd=directory)
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
    return os.open(LOCK_FILE, os.O_RDONLY | FLAGS, dir_fd=directory)


def _make(directory: int) -> int | None:
    """Make the lock file; None if another has just made it. Where it cannot be made, the root itself is locked."""
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
    """Check that a file is the lock of a daemon of this user or of the superuser, and that no other can open it.

    Return whether others could, until now.
    """
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise _refused(root, "is no regular file")
    if found.st_uid not in (0, os.geteuid()):
        raise _refused(root, f"belongs to user {found.st_uid}")
    if found.st_nlink > 1:
        # It may be the lock of another program, which would then wait for this one.
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
