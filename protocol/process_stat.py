"""Parses ``/proc/PID/stat``."""

from __future__ import annotations


def start_ticks(stat: bytes) -> int:
    """Return the start time of the process in clock ticks after the boot: field 22.

    Field 2, the name of the program, is in parentheses and may contain anything, even parentheses.

    Raises:
      ValueError: if this is not the content of such a file.
    """
    fields = stat.rpartition(b")")[2].split()
    if len(fields) < 20:
        raise ValueError(f"it is not the stat of a process: {stat[:100]!r}")
    return int(fields[19])


def command(stat: bytes) -> str:
    """Return the name of the program: field 2, at most 15 bytes, which the process can change."""
    return stat.partition(b"(")[2].rpartition(b")")[0].decode("utf-8", "surrogateescape")


def parent(stat: bytes) -> int:
    """Return the id of the parent process: field 4."""
    return int(stat.rpartition(b")")[2].split()[1])


def has_ended(stat: bytes) -> bool:
    """Return whether the process is a zombie or dead: the state, field 3, is Z or X."""
    return stat.rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"], [b"x"])
