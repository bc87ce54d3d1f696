"""Which process a pid is now.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Final

from ...protocol.leases.values import ProcessIdentity
from ...protocol.process_stat import has_ended, start_ticks

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Return the id of this boot.

    Raises:
      OSError: if it cannot be read.
    """
    with open(_BOOT_ID, encoding="ascii") as file:
        return file.read().strip()


def identity_of(pid: int) -> ProcessIdentity | None:
    """Return which process ``pid`` is; None if there is none, or it has ended and only its parent has not noticed.

    Raises:
      OSError: if that cannot be read.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if has_ended(stat) else ProcessIdentity(pid, start_ticks(stat), boot_id())
