"""The kind of clock that the loop has."""

from __future__ import annotations

import sys

import trio


def time_is_virtual() -> bool:
    """Whether the clock is a MockClock, whose time does not pass while code runs."""
    # Importing it would take a tenth of a second. Without the import there is no MockClock.
    testing = sys.modules.get("trio.testing")
    return testing is not None and isinstance(trio.lowlevel.current_clock(), testing.MockClock)
