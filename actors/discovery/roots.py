"""The roots of a node: their checks, the creation of a missing root, and the lock against a second node."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Final

from ...protocol.discovery.watches import LOCK_FILE
from ...protocol.errors import ConfigError
from ...protocol.trust.directories import root_insecurity
from ..trust.directories import InsecureRootError, access_of
from .root_lock import FLAGS, MODE, RootBusyError, lock

#: With O_NONBLOCK, since opening another user's FIFO would wait.
_READ: Final = os.O_RDONLY | FLAGS


def check_locks_above(root: str) -> None:
    """Check that no other node has locked a directory above ``root``.

    Such a node registers what is in the root, too (fault 96). Only the inner node looks, so that no node has to search
    its tree for locks. A lock file that this process may not open is not seen.

    Raises:
      RootBusyError: if another node has locked one.
    """
    for directory in _above(os.path.realpath(root)):
        if _is_locked(os.path.join(directory, LOCK_FILE)):
            raise RootBusyError(
                f"another plugind runs on {directory}, in which the root {root} lies: stop it, or choose another"
                " directory with --root"
            )


def _above(path: str) -> Iterator[str]:
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _is_locked(path: str) -> bool:
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return False  # Usually there is none.
    try:
        if _is_of_a_node(os.fstat(descriptor)):
            # Held for microseconds. A node that starts during that time finds the directory busy.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_of_a_node(found: os.stat_result) -> bool:
    """Whether no other user can have made or locked the file: in ``/tmp``, for example, anybody can."""
    trusted = found.st_uid in (0, os.geteuid()) and found.st_nlink == 1
    return trusted and stat.S_ISREG(found.st_mode) and not stat.S_IMODE(found.st_mode) & ~MODE


__all__ = ["RootBusyError", "RootLock", "make"]

#: The mode of a root that plugind makes (behaviour 1).
_MODE = 0o750
#: Errors that a retry cannot fix: the path is a file or a symbolic link, or is not a path.
_NO_DIRECTORY = frozenset({errno.EEXIST, errno.ENOTDIR, errno.ELOOP})


class RootLock:
    """A node's lock on the directory of one root, and the check of who may write to it.

    :mod:`.root_lock` says what is locked. The root may be missing at first, and another directory may take its place
    later. So :meth:`take` is called before each scan; it changes nothing while the lock is still right.
    """

    def __init__(self, *, insecure: bool = False, check_only: bool = False) -> None:
        """With ``check_only`` lock nothing, because another program registers the plugins."""
        self._insecure = insecure
        self._check_only = check_only
        self._descriptor: int | None = None

    def take(self, path: str) -> None:
        """Check the directory at ``path`` and lock it.

        Raises:
          ConfigError: if it is not a directory (fault 2).
          InsecureRootError: if others may write to it (fault 3).
          RootBusyError: if another node has locked it, or a directory above it (fault 96).
          OSError: if it is missing, or cannot be opened or locked; a retry may succeed (faults 1 and 4).
        """
        with ExitStack() as undo:
            descriptor = _open(path)
            undo.callback(os.close, descriptor)
            found = os.fstat(descriptor)
            problem = None if self._insecure else root_insecurity(path, access_of(found))
            if problem is not None:
                raise InsecureRootError(problem)
            if not self._check_only:
                self._lock(path, descriptor)

    def _lock(self, path: str, directory: int) -> None:
        try:
            check_locks_above(path)
            descriptor = lock(path, directory, self._descriptor)
        except RootBusyError:
            self.release()  # The lock is of another directory, or the node above goes first.
            raise
        if descriptor != self._descriptor:
            self.release()
            self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._descriptor is None:
            return
        # A forked child holds the lock too, as long as its copy of the descriptor is open.
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)
        self._descriptor = None


def make(path: str) -> None:
    """Make the directory ``path``, but none above it, so that a misspelt root does not become a tree of directories.

    Raises:
      OSError: if it cannot be made.
    """
    with suppress(FileExistsError):
        os.mkdir(path, mode=_MODE)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_DIRECTORY:
            raise ConfigError(f"the root {path} is not a directory, or is a symbolic link: name a directory") from None
        if error.errno == errno.ENAMETOOLONG:
            raise ConfigError(f"the root {path} cannot be used: {error.strerror}; name another with --root") from None
        raise
