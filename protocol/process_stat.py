"""What ``/proc/PID/stat`` says of a process.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations


def start_ticks(stat: bytes) -> int:
    """Return when the process began, in clock ticks after the boot: field 22.

    The name of the program, field 2, is in parentheses and may hold anything, also spaces and parentheses.

    Raises:
      ValueError: if this is not the content of such a file.
    """
    fields = stat.rpartition(b")")[2].split()
    if len(fields) < 20:
        raise ValueError(f"it is not the stat of a process: {stat[:100]!r}")
    return int(fields[19])
