"""Who may write to the directories that are looked at; :mod:`plugind.protocol.directories` judges that.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator

from ...protocol.directories import Access, insecurity_above, root_insecurity_above
from ...protocol.discovery import Found
from ...protocol.errors import ConfigError

#: How many symbolic links the kernel follows on the way to a file.
_MOST_LINKS = 40


class InsecureRootError(ConfigError):
    """Others may write to the root (fault 3). The text says what to do."""


def access_of(status: os.stat_result) -> Access:
    """Return who may write to the directory with this ``status``."""
    return Access(stat.S_IMODE(status.st_mode), status.st_uid, status.st_uid == os.geteuid())


def first_owner(found: Iterable[Found | None]) -> int | None:
    """Return the first user but root and that of the daemon who owns one of what was found; None if there is none."""
    accesses = (it.access for it in found if it is not None and it.access is not None)
    return next((access.owner for access in accesses if not access.is_trusted), None)


def check_above_root(root: str) -> None:
    """Check that no other user can put another directory into the place of the ``root``, or of one above it.

    Raises:
      InsecureRootError: if one can (fault 3).
      OSError: if a directory cannot be looked at. Those below a missing one are not judged.
    """
    for path, access in _above(root):
        problem = root_insecurity_above(root, path, access)
        if problem is not None:
            raise InsecureRootError(problem)


def who_may_replace(path: str) -> tuple[str, str] | None:
    """Return the directory above ``path`` that lets others replace what lies at that, and why; None if there is none.

    Raises:
      OSError: see :func:`check_above_root`.
    """
    found = ((above, insecurity_above(above, access)) for above, access in _above(path))
    return next(((above, problem) for above, problem in found if problem is not None), None)


def _above(path: str) -> Iterator[tuple[str, Access]]:
    """Yield each directory above the absolute ``path``, and each symbolic link on the way, from the top."""
    here, names, links = "/", deque(os.path.dirname(path).split("/")), 0
    yield here, access_of(os.lstat(here))
    while names:
        name = names.popleft()
        there = os.path.normpath(os.path.join(here, name))
        try:
            status = os.lstat(there)
        except (FileNotFoundError, NotADirectoryError):
            return
        if not stat.S_ISLNK(status.st_mode):
            here = there
            yield here, access_of(status)
            continue
        yield there, Access(0, status.st_uid, status.st_uid == os.geteuid())
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(there)
        here = "/" if target.startswith("/") else here
        names.extendleft(reversed(target.split("/")))
