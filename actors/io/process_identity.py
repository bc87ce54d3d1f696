"""Which process a pid is now.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Final

from ...protocol.leases.values import ProcessIdentity

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def boot_id(path: str = _BOOT_ID) -> str:
    """Return the id of this boot.

    Raises:
      OSError: if it cannot be read.
    """
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def identity_of(pid: int) -> ProcessIdentity | None:
    """Return which process ``pid`` is; None if there is none, or it has ended and only its parent has not noticed.

    Raises:
      OSError: if that cannot be read.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program, in parentheses, may hold anything.
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X", b"x") else ProcessIdentity(pid, int(fields[19]), boot_id())
