"""The identity of a process behind a pid."""

from __future__ import annotations

import errno
import functools
import os
from contextlib import suppress
from typing import Final

from ...protocol.leases.values import ProcessIdentity
from ...protocol.process_stat import has_ended, start_ticks

_MOST: Final = 4096
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


@functools.cache
def boot_id() -> str:
    """Return the id of this boot.

    Raises:
      OSError: if it cannot be read.
    """
    with open(_BOOT_ID, encoding="ascii") as file:
        return file.read().strip()


def known_boot_id() -> str:
    """Return the id of this boot; empty if it cannot be read."""
    with suppress(OSError):
        return boot_id()
    return ""


def identity_of(pid: int) -> ProcessIdentity | None:
    """Return the identity of process ``pid``; None if there is none, or if it is a zombie.

    Raises:
      OSError: if it cannot be read.
    """
    try:
        stat = _read(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        if _is_there(pid):
            raise OSError(errno.EACCES, "/proc does not show it (hidepid)") from None
        return None
    return None if has_ended(stat) else ProcessIdentity(pid, start_ticks(stat), boot_id())


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _read(path: str) -> bytes:
    """Return the content of a small file, in half the time of a file object."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, _MOST)
    finally:
        os.close(file)
