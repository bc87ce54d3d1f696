"""The locks of the directories above a root: a node that runs there registers what is in the root too (fault 96).

The node of the outer root goes first: that of the inner root does not start, and lets go of its plugins once an outer
one has started. So the inner one alone has to look, and the outer one need not search its tree for locks.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from typing import Final

from ...protocol.discovery.watches import LOCK_FILE
from .root_lock import FLAGS, MODE, RootBusyError

#: O_NONBLOCK is among the flags: another user's FIFO there would be waited for.
_READ: Final = os.O_RDONLY | FLAGS


def check_locks_above(root: str) -> None:
    """Check that no other node has locked a directory above the ``root``.

    A lock that this process may not look at is not seen.

    Raises:
      RootBusyError: if one has.
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
        return False  # In general there is none.
    try:
        if _is_of_a_node(os.fstat(descriptor)):
            # It is held for microseconds, and another node that starts then finds the directory busy.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_of_a_node(found: os.stat_result) -> bool:
    """Whether no other user can have made or locked it: anybody may do so in a directory such as ``/tmp``."""
    trusted = found.st_uid in (0, os.geteuid()) and found.st_nlink == 1
    return trusted and stat.S_ISREG(found.st_mode) and not stat.S_IMODE(found.st_mode) & ~MODE
