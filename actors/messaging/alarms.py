"""Wakes many tasks at times of which several have the same one, with one task and one timer.

A task that sleeps by itself needs a cancel scope, and is woken by an exception. Where a thousand tasks each sleep for
half a minute, that costs more than what they do in between, and each of them wakes the whole process alone.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import heapq
import math

import trio


class Alarms:
    """The times for which tasks wait, on Trio's clock; :meth:`run` wakes them."""

    def __init__(self) -> None:
        #: What is set at each time.
        self._events: dict[float, trio.Event] = {}
        self._times: list[float] = []
        #: Set when there is an earlier time than before.
        self._earlier = trio.Event()

    async def until(self, time: float) -> None:
        """Wait until ``time``. Those that wait for the same time go on together."""
        event = self._events.get(time)
        if event is None:
            event = self._events[time] = trio.Event()
            heapq.heappush(self._times, time)
            if self._times[0] == time:
                self._earlier.set()
        await event.wait()

    async def run(self) -> None:
        """Wake the tasks whose time has come, for ever. It may be run again after its end."""
        while True:
            self._earlier = trio.Event()
            with trio.move_on_at(self._times[0] if self._times else math.inf):
                await self._earlier.wait()
            now = trio.current_time()
            while self._times and self._times[0] <= now:
                self._events.pop(heapq.heappop(self._times)).set()
