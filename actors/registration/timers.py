"""The times at which tries that take long are looked at.

A cancel scope with a deadline for each step of a try would cost more than the step, and nearly all tries are over at
once. So the owner of all registrations has one timer: a try is first looked at :data:`FIRST_LOOK` seconds after it got
its dial slot. From then on its actor says when it has to be looked at again: at the deadline of the step that is under
way, or when a first try has been silent for long enough. No timer runs while no try is under way.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque

import trio
import trio.lowlevel

from ...protocol.registration.info_deadline import FIRST_LOOK
from .inbox import RegistrationInbox


class TryTimers:
    """When which try is looked at next. A look at a try that has ended does nothing."""

    def __init__(self) -> None:
        #: First looks, in the order in which they are due.
        self._first: deque[tuple[float, RegistrationInbox]] = deque()
        #: Other looks, as a heap.
        self._later: list[tuple[float, int, RegistrationInbox]] = []
        self._numbers = itertools.count()
        self._changed = trio.Event()

    def begin(self, inbox: RegistrationInbox, began: float) -> None:
        """Have a first look at a try that got its dial slot at ``began``, in ``trio.current_time()``."""
        self._first.append((began + FIRST_LOOK, inbox))
        if len(self._first) == 1:
            self._changed.set()

    def look_at(self, inbox: RegistrationInbox, time: float) -> None:
        """Look at a try at ``time``."""
        heapq.heappush(self._later, (time, next(self._numbers), inbox))
        if self._later[0][2] is inbox:
            self._changed.set()

    async def serve(self) -> None:
        """Look when it is due, until cancelled."""
        while True:
            self._changed = trio.Event()
            with trio.move_on_at(self._next_due()):
                await self._changed.wait()
            now = trio.current_time()
            while self._first and self._first[0][0] <= now:
                self._look(self._first.popleft()[1], now)
            while self._later and self._later[0][0] <= now:
                self._look(heapq.heappop(self._later)[2], now)

    def _next_due(self) -> float:
        first = self._first[0][0] if self._first else math.inf
        return min(first, self._later[0][0]) if self._later else first

    def _look(self, inbox: RegistrationInbox, now: float) -> None:
        again = None if inbox.look is None else inbox.look(now)
        if again is not None:
            self.look_at(inbox, again)
