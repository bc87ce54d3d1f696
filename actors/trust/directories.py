"""Finds out who may write to directories; :mod:`plugind.protocol.trust.directories` judges that."""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator

import attrs

from ...protocol.errors import ConfigError
from ...protocol.trust.directories import (
    Access,
    DirectoryCondition,
    DirectoryReport,
    Trusts,
    between,
    insecurity_above,
    judge,
    root_insecurity_above,
    trusted_owner,
)
from .users import unmapped_uid

_MOST_LINKS = 40


class InsecureRootError(ConfigError):
    """Others may write to the root (fault 3). The text says what to do."""


def access_of(status: os.stat_result, own: int | None = None) -> Access:
    """Return who may write to the directory with this ``status``; ``own`` is the daemon's user, by default this one."""
    own, owner = os.geteuid() if own is None else own, status.st_uid
    # If our own user is not mapped either, its number may stand for any unmapped user.
    unmapped = owner == unmapped_uid()
    return Access(stat.S_IMODE(status.st_mode), owner, ours=owner == own and not unmapped, unmapped=unmapped)


def first_owner(accesses: Iterable[Access | None]) -> int | None:
    """Return the first owner of some directories except root and the daemon's user; None if there is none."""
    return next((access.owner for access in accesses if access is not None and not access.is_trusted), None)


def owner_on_the_way(root: str, path: str, own: int) -> int | None:
    """Return the first owner, except root and ``own``, of a directory between ``root`` and ``path``.

    Raises:
      OSError: if a directory cannot be looked at.
    """
    return first_owner(access_of(os.lstat(directory), own) for directory in between(root, path))


def judge_on_the_way(root: str, path: str, trusts: Trusts, own: int) -> Iterator[DirectoryReport]:
    """Yield the problems of ``root``, of the directories above it and of those between it and ``path``.

    ``own`` is the user of the daemon.

    Raises:
      OSError: if a directory cannot be looked at.
    """
    try:
        check_above_root(root, own)
    except InsecureRootError as error:
        yield DirectoryReport(root, DirectoryCondition.INSECURE, str(error))
    owner = None
    for directory in (root, *between(root, path)):
        status = os.lstat(directory)
        if stat.S_ISLNK(status.st_mode):
            reason = f"{directory} is a symbolic link, and links are not followed: use the path of the directory itself"
            yield DirectoryReport(directory, DirectoryCondition.INSECURE, reason)
            return
        access, is_root = access_of(status, own), directory == root
        report = judge(directory, access, is_root=is_root, trusts=trusts, above=owner)
        if report is not None:
            yield report
        owner = None if is_root else trusted_owner(access, owner)


def check_above_root(root: str, own: int | None = None) -> None:
    """Check that no other user can replace the ``root``, or a directory above it.

    Raises:
      InsecureRootError: if one can (fault 3).
      OSError: if a directory cannot be looked at. Directories below a missing one are not judged.
    """
    for path, access in _above(root, own):
        problem = root_insecurity_above(root, path, access)
        if problem is not None:
            raise InsecureRootError(problem)


def who_may_replace(path: str) -> tuple[str, str] | None:
    """Return a directory above ``path`` that lets others replace what is there, and why; None if there is none.

    Raises:
      OSError: see :func:`check_above_root`.
    """
    found = ((above, insecurity_above(above, access)) for above, access in _above(path))
    return next(((above, problem) for above, problem in found if problem is not None), None)


def _above(path: str, own: int | None = None) -> Iterator[tuple[str, Access]]:
    """Yield each directory above the absolute ``path``, and each symbolic link on the way, from the top."""
    here, names, links = "/", deque(os.path.dirname(path).split("/")), 0
    yield here, access_of(os.lstat(here), own)
    while names:
        name = names.popleft()
        there = os.path.normpath(os.path.join(here, name))
        try:
            status = os.lstat(there)
        except (FileNotFoundError, NotADirectoryError):
            return
        if not stat.S_ISLNK(status.st_mode):
            here = there
            yield here, access_of(status, own)
            continue
        yield there, attrs.evolve(access_of(status, own), mode=0)
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(there)
        here = "/" if target.startswith("/") else here
        names.extendleft(reversed(target.split("/")))
