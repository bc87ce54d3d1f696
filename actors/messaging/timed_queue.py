"""Times at which things are due, on Trio's clock, with one timer for all.

A cancel scope with a deadline for each of thousands of things would cost more than the work that is due.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class TimedQueue(Generic[T]):
    """Things with the times at which they are due. One task waits for them; no timer runs without any."""

    __slots__ = ("_changed", "_heap", "_numbers")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        #: Keeps the order of things that are due at the same time.
        self._numbers = itertools.count()
        self._changed = trio.Event()

    def put(self, time: float, thing: T) -> None:
        """Make ``thing`` due at ``time``, in ``trio.current_time()``."""
        entry = (time, next(self._numbers), thing)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._changed.set()

    def wake(self) -> None:
        """End the present wait of :meth:`due`."""
        self._changed.set()

    async def due(self) -> list[T]:
        """Wait until something is due, or for :meth:`wake`; remove and return what is due, earliest first."""
        heap = self._heap
        self._changed = trio.Event()
        with trio.move_on_at(heap[0][0] if heap else math.inf):
            await self._changed.wait()
        now, due = trio.current_time(), []
        while heap and heap[0][0] <= now:
            due.append(heapq.heappop(heap)[2])
        return due
