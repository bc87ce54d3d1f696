"""The timer that follows the time since the boot."""

from __future__ import annotations

import time
from contextlib import closing

import trio

from plugind.actors.io.boot_timer import BootTimer


async def test_it_sleeps_until_a_time_since_the_boot() -> None:
    """And not at all if that has passed; a sleep that was cancelled leaves the timer to the next one."""
    with closing(BootTimer()) as timer:
        now = timer.now()
        assert abs(now - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) < 60 * 10**9
        with trio.fail_after(60):
            await timer.sleep_until(0)
            await timer.sleep_until(now)
            with trio.move_on_after(0.001):
                await timer.sleep_until(now + 3600 * 10**9)
            end = timer.now() + 30 * 10**6
            await timer.sleep_until(end)
            assert timer.now() >= end
