"""Prepares the roots of a node before a watcher starts: makes them, checks them, and locks out a second daemon.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from ...protocol.errors import ConfigError


class RootBusyError(Exception):
    """Another daemon uses the root (fault 96). The text names the root."""


@contextmanager
def lock_roots(paths: Iterable[str], *, allow_insecure: bool = False) -> Iterator[None]:
    """Make and check the roots at ``paths``, and lock each of them while the context is entered.

    The lock is on the directory itself: there is no lock file, and a killed daemon leaves no lock behind.

    Raises:
      ConfigError: if a root is not a directory, cannot be used, or others may write to it (faults 2 and 3).
      RootBusyError: if another daemon has locked a root.
    """
    with ExitStack() as stack:
        for path in paths:
            descriptor = _open(path, allow_insecure=allow_insecure)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RootBusyError(
                    f"another plugind runs on {path}: stop it, or choose another directory with --root"
                ) from None
        yield


def _open(path: str, *, allow_insecure: bool) -> int:
    try:
        os.makedirs(path, mode=0o755, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.ELOOP):
            raise ConfigError(f"the root {path} is not a directory, or is a symbolic link: name a directory") from None
        raise ConfigError(f"the root {path} cannot be used: {error.strerror}; name another with --root") from None
    found = os.fstat(descriptor)
    if not allow_insecure and (problem := _insecure(path, found)):
        os.close(descriptor)
        raise ConfigError(problem)
    return descriptor


def _insecure(path: str, found: os.stat_result) -> str | None:
    """Return why the root is insecure: a user who may write to it may register plugins (fault 3)."""
    if found.st_mode & stat.S_IWOTH:
        return f"everybody may write to the root {path}: run 'chmod o-w {path}', or allow it with --insecure-root"
    if found.st_uid not in (0, os.geteuid()):
        return (
            f"the root {path} belongs to user {found.st_uid}: give it to root or to this user, or use --insecure-root"
        )
    return None
