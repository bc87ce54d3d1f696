"""Which kind of clock the loop has."""

from __future__ import annotations

import sys

import trio


def time_is_virtual() -> bool:
    """Whether the clock is a MockClock, whose time does not pass while code runs."""
    # Looked up, because the import would take a tenth of a second, and a process without it has no such clock.
    testing = sys.modules.get("trio.testing")
    return testing is not None and isinstance(trio.lowlevel.current_clock(), testing.MockClock)
