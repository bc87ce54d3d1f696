"""The time since the boot, including suspends, and a timer that follows it.

Trio's clock stops during a suspend, so a lease of an hour would last a night longer.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Final

import trio

_LIBC = ctypes.CDLL(None, use_errno=True)
_TFD_TIMER_ABSTIME: Final = 1
_SECOND: Final = 10**9


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Timer(ctypes.Structure):
    _fields_ = (("interval", _Time), ("value", _Time))


_LIBC.timerfd_settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Timer), ctypes.c_void_p)


class BootTimer:
    """The real :class:`~plugind.actors.leases.owners.BootClock`, with one timer."""

    def __init__(self) -> None:
        self._timer = _checked(_LIBC.timerfd_create(time.CLOCK_BOOTTIME, os.O_NONBLOCK | os.O_CLOEXEC))

    def now(self) -> int:
        """See :class:`~plugind.actors.leases.owners.BootClock`."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    async def sleep_until(self, end: int) -> None:
        """See :class:`~plugind.actors.leases.owners.BootClock`."""
        # A timer that is set to 0 is off.
        seconds, nanoseconds = divmod(max(1, end), _SECOND)
        timer = _Timer(_Time(0, 0), _Time(seconds, nanoseconds))
        _checked(_LIBC.timerfd_settime(self._timer, _TFD_TIMER_ABSTIME, ctypes.byref(timer), None))
        await trio.lowlevel.wait_readable(self._timer)

    def close(self) -> None:
        """See :class:`~plugind.actors.leases.owners.BootClock`."""
        os.close(self._timer)


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
