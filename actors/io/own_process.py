"""Figures of this process from the kernel, for its metrics."""

from __future__ import annotations

import functools
import os
import resource
import time
from typing import Final

from ...protocol.process_stat import start_ticks
from ...protocol.values import value
from .descriptors import EXHAUSTED
from .process_identity import read_small

_DESCRIPTORS: Final = "/proc/self/fd"


@value
class ProcessFigures:
    """What this process has used so far; None for what cannot be found out."""

    #: Of all threads, in user and kernel mode.
    cpu_seconds: float
    #: In Unix seconds. It does not change, even if the clock is set.
    started: float | None
    virtual_bytes: int | None
    resident_bytes: int | None
    open_descriptors: int | None
    max_descriptors: int


def figures() -> ProcessFigures:
    """Return the figures of this process, which takes less than 0.1 ms."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    virtual, resident = _memory()
    return ProcessFigures(used.ru_utime + used.ru_stime, _started(), virtual, resident, _open_descriptors(most), most)


def _memory() -> tuple[int | None, int | None]:
    """Return the bytes of the address space, and of its part in memory."""
    try:
        pages = read_small("/proc/self/statm").split()
    except OSError:
        return None, None
    size = os.sysconf("SC_PAGE_SIZE")
    return int(pages[0]) * size, int(pages[1]) * size


def _open_descriptors(most: int) -> int | None:
    """Return the number of open descriptors. If there is none left to look with, all are open."""
    try:
        # Linux reports the number since 6.2. Before that they are listed, which takes one more.
        return os.stat(_DESCRIPTORS).st_size or len(os.listdir(_DESCRIPTORS)) - 1
    except OSError as error:
        return most if error.errno in EXHAUSTED else None


def _started() -> float | None:
    try:
        return _start()
    except (OSError, ValueError):
        return None


@functools.cache
def _start() -> float:
    ticks = start_ticks(read_small("/proc/self/stat"))
    after_boot = ticks / os.sysconf("SC_CLK_TCK")
    return round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + after_boot, 2)
