"""The cores on which a benchmark runs the daemon and the plugins."""

from __future__ import annotations

import os


def two_cores(*, pin: bool = True) -> tuple[int | None, int | None]:
    """Return a core for the daemon and one for the plugins, or None for both where the kernel chooses."""
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[1]) if pin and len(cores) > 1 else (None, None)
