"""How many conversations with plugins go on at once.

In a storm thousands of sockets appear within a second. To dial them all at once would make each conversation take as
long as all of them together, past the deadlines of its calls. So a conversation takes one of a few places. But a plugin
that hangs must not hold a place that a healthy one needs (behaviour 22, fault 47): a place is lent for a moment only.
Whoever overstays it goes on without, and the next begins; what bounds those who overstay is the number of descriptors.
"""

from __future__ import annotations

from collections import deque

import trio
from trio_util import AsyncBool


class Place:
    """A place that was taken; give it back once."""

    __slots__ = ("_places", "lapsed", "lent_at", "returned")

    def __init__(self, places: Places, lent_at: float) -> None:
        self._places = places
        self.lent_at = lent_at
        self.lapsed = False
        self.returned = False

    def give_back(self) -> None:
        """The conversation is over; may be repeated."""
        if not self.returned:
            self.returned = True
            self._places.returned(self)


class Places:
    """The places of one node, lent in the order asked for.

    ``limit`` conversations are under way at once, those not counted that have lasted longer than ``lapse`` seconds;
    with those, at most ``most_open``.
    """

    def __init__(self, *, limit: int = 64, lapse: float = 0.1, most_open: int = 4096) -> None:
        self._limit = limit
        self._lapse = lapse
        self._most_open = most_open
        self._fresh = 0
        self._open = 0
        #: Those lent, in order; what was returned or has lapsed is dropped from the front.
        self._lent: deque[Place] = deque()
        self._queue = trio.lowlevel.ParkingLot()
        #: Somebody waits for a place.
        self._contended = AsyncBool()

    async def take(self) -> Place:
        """Return a place as soon as there is one."""
        if self._queue or not self._free:
            self._contended.value = True
            # Whoever wakes us has counted us in.
            await self._queue.park()
        else:
            self._count_in()
        place = Place(self, trio.current_time())
        self._lent.append(place)
        return place

    def returned(self, place: Place) -> None:
        """Called by :meth:`Place.give_back`."""
        self._open -= 1
        if not place.lapsed:
            self._fresh -= 1
        self._drop()
        self._wake()

    async def run(self) -> None:
        """Let places lapse while others wait for one; otherwise no timer runs."""
        while True:
            await self._contended.wait_value(value_or_predicate=True)
            resume = 0.0
            while self._queue:
                self._drop()
                oldest = self._lent[0].lent_at if self._lent else trio.current_time()
                due = max(oldest + self._lapse, resume)
                await trio.sleep_until(due)
                now = trio.current_time()
                if now - due > self._lapse / 2:
                    # It is this process that was busy, not the plugins that are slow: to begin more conversations
                    # would make all of them later still.
                    resume = now + self._lapse
                else:
                    self._let_lapse(now)
            self._contended.value = False

    @property
    def _free(self) -> bool:
        return self._fresh < self._limit and self._open < self._most_open

    def _count_in(self) -> None:
        self._fresh += 1
        self._open += 1

    def _wake(self) -> None:
        while self._queue and self._free:
            self._count_in()
            self._queue.unpark()

    def _drop(self) -> None:
        while self._lent and (self._lent[0].returned or self._lent[0].lapsed):
            self._lent.popleft()

    def _let_lapse(self, now: float) -> None:
        while self._lent and (self._lent[0].returned or self._lent[0].lent_at + self._lapse <= now):
            place = self._lent.popleft()
            if not place.returned:
                place.lapsed = True
                self._fresh -= 1
        self._wake()
