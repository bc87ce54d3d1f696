"""What ``/proc/PID/stat`` says of a process."""

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


def has_ended(stat: bytes) -> bool:
    """Return whether the process has ended, and only its parent has not asked how: the state, field 3, is Z or X."""
    return stat.rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"], [b"x"])
