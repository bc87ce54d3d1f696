"""What is due at which time of Trio's clock, with one timer for all of it.

A cancel scope with a deadline for each of thousands of things costs more than what is done when it is due.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Schedule(Generic[T]):
    """Things with the time at which each is due. One task waits for them; no timer runs while there are none."""

    __slots__ = ("_changed", "_heap", "_numbers")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        #: Things that are due at the same time come in the order in which they were put in.
        self._numbers = itertools.count()
        self._changed = trio.Event()

    def put(self, time: float, thing: T) -> None:
        """Have ``thing`` be due at ``time``, in ``trio.current_time()``."""
        entry = (time, next(self._numbers), thing)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._changed.set()

    def wake(self) -> None:
        """End a wait of :meth:`due` that is under way."""
        self._changed.set()

    async def due(self) -> list[T]:
        """Wait until something is due, or until :meth:`wake`; take and return what is due, the earliest first."""
        heap = self._heap
        self._changed = trio.Event()
        with trio.move_on_at(heap[0][0] if heap else math.inf):
            await self._changed.wait()
        now, due = trio.current_time(), []
        while heap and heap[0][0] <= now:
            due.append(heapq.heappop(heap)[2])
        return due
