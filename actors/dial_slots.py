"""Limits the number of concurrent conversations with plugins.

In a storm thousands of sockets appear within a second. If all were dialed at once, each conversation would take as long
as all of them together, past the deadlines of its calls. So a conversation first acquires one of a few slots.

A plugin that hangs must not keep a slot from a healthy one (behaviour 22, fault 47). So while others wait, a slot
expires after a moment: the conversation goes on, overdue, and the next one begins. The number of overdue conversations
is bounded by the number of descriptors.

When a dial finds that the process has no descriptor left, its plugin has not failed, and all other dials would
fail alike. So dials pause (fault 46). Ten times a second as many begin as there are descriptors then, and one whenever
a conversation ends; the pause is over once there are enough for all slots.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio
from trio_util import AsyncBool

from ..protocol.health import Reading

#: Why dials pause, as users are shown it.
NO_DESCRIPTORS = "no descriptors left"
#: Seconds between two counts of descriptors while dials pause.
PAUSE = 0.1


class PausedError(Exception):
    """Dials pause until the process has descriptors again."""


class DialSlot:
    """An acquired slot."""

    __slots__ = ("_slots", "acquired_at", "overdue", "released")

    def __init__(self, slots: DialSlots, acquired_at: float) -> None:
        self._slots = slots
        #: ``trio.current_time()`` at which it was acquired.
        self.acquired_at = acquired_at
        #: The slot expired while it was held, and another conversation has begun instead.
        self.overdue = False
        self.released = False

    def release(self) -> None:
        """Release the slot at the end of the conversation. Further calls do nothing."""
        if not self.released:
            self.released = True
            self._slots.on_release(self)

    def pause(self) -> None:
        """End the dial because the process had no descriptor left for it: all dials pause."""
        self.released = True
        self._slots.on_exhausted(self)


class DialSlots:
    """The slots of one node, acquired in the order of the requests.

    At most ``limit`` conversations are under way at once, not counting those that have lasted longer than
    ``expire_after`` seconds; at most ``most_open`` when those are counted.
    """

    def __init__(
        self,
        *,
        limit: int = 64,
        expire_after: float = 0.1,
        most_open: int = 4096,
        count_descriptors: Callable[[int], int] = lambda most: most,
    ) -> None:
        """Ask ``count_descriptors``, which counts up to a number, how many are left for dials that pause."""
        self._limit = limit
        self._expire_after = expire_after
        self._most_open = most_open
        self._count_descriptors = count_descriptors
        self._paused = False
        #: How many slots are held that have not expired, and how many are held in all.
        self._fresh = 0
        self._open = 0
        self._ever_acquired = 0
        #: The slots that were acquired, in order. Those released or overdue are dropped from the front.
        self._acquired: deque[DialSlot] = deque()
        self._queue = trio.lowlevel.ParkingLot()
        #: The waiters that were notified of the pause, which may be over. They came before those in the queue.
        self._informed = trio.lowlevel.ParkingLot()
        #: The waiters that were woken to be notified that dials pause.
        self._turned_away: set[trio.lowlevel.Task] = set()
        #: Whether a conversation waits for a slot.
        self._contended = AsyncBool()
        #: False if none does. To read this costs less than to ask a parking lot, which most conversations need not.
        self._maybe_waiting = False

    async def acquire(self, *, through_pause: bool = True) -> DialSlot:
        """Return a slot as soon as there is one.

        Raises:
          PausedError: if dials pause, or begin to before there is a slot, unless ``through_pause``.
        """
        waiting = self._maybe_waiting and bool(self._queue or self._informed)
        if self._paused and not waiting:
            # Nothing has looked for descriptors since the last conversation that waited went on.
            self._go_on(self._limit)
        if self._paused and not through_pause:
            raise PausedError
        if waiting or self._paused or not self._is_free:
            self._contended.value = self._maybe_waiting = True
            # The task that woke this one has already counted the slot.
            await (self._informed if through_pause else self._queue).park()
            self._raise_if_turned_away()
        else:
            self._count()
        slot = DialSlot(self, trio.current_time())
        self._acquired.append(slot)
        self._ever_acquired += 1
        return slot

    def _raise_if_turned_away(self) -> None:
        task = trio.lowlevel.current_task()
        if task in self._turned_away:
            self._turned_away.remove(task)
            raise PausedError

    def on_release(self, slot: DialSlot) -> None:
        """Take a slot back; only :meth:`DialSlot.release` calls this."""
        self._take_back(slot)
        if self._paused:
            self._go_on(1)
        else:
            self._wake(self._limit)

    def on_exhausted(self, slot: DialSlot) -> None:
        """Take a slot back and pause; only :meth:`DialSlot.pause` calls this."""
        self._take_back(slot)
        self._paused = True
        self._turned_away.update(self._queue.unpark_all())

    def _take_back(self, slot: DialSlot) -> None:
        self._open -= 1
        if not slot.overdue:
            self._fresh -= 1
        self._drop_settled()

    def _go_on(self, most: int) -> None:
        """Let at most ``most`` of the dials that pause go on, if the process has descriptors for them."""
        left = self._count_descriptors(most)
        self._paused = left < self._limit
        self._wake(left)

    async def run(self) -> None:
        """Let slots expire, and dials go on, while conversations wait for one. No timer runs otherwise."""
        while True:
            await self._contended.wait_value(value_or_predicate=True)
            resume = 0.0
            while self._queue or self._informed:
                if self._paused:
                    await trio.sleep(PAUSE)
                    self._go_on(self._limit)
                    continue
                self._drop_settled()
                oldest = self._acquired[0].acquired_at if self._acquired else trio.current_time()
                due = max(oldest + self._expire_after, resume)
                await trio.sleep_until(due)
                now = trio.current_time()
                if now - due > self._expire_after / 2:
                    # This process was busy, so the plugins may not be slow. More conversations would delay all of
                    # them further.
                    resume = now + self._expire_after
                else:
                    self._expire(now)
            self._contended.value = self._maybe_waiting = False

    def read(self) -> Reading:
        """Return how many conversations wait for a slot, and how many have had one."""
        held_up = None
        if self._paused:
            held_up = NO_DESCRIPTORS
        elif self._open >= self._most_open:
            held_up = f"{self._open} conversations go on, which is the limit"
        return Reading(len(self._queue) + len(self._informed), self._ever_acquired, held_up)

    @property
    def _is_free(self) -> bool:
        return self._fresh < self._limit and self._open < self._most_open

    def _count(self) -> None:
        self._fresh += 1
        self._open += 1

    def _wake(self, most: int) -> None:
        while self._maybe_waiting and most and (lot := self._informed or self._queue) and self._is_free:
            most -= 1
            self._count()
            lot.unpark()

    def _drop_settled(self) -> None:
        while self._acquired and (self._acquired[0].released or self._acquired[0].overdue):
            self._acquired.popleft()

    def _expire(self, now: float) -> None:
        while self._acquired and (
            self._acquired[0].released or self._acquired[0].acquired_at + self._expire_after <= now
        ):
            slot = self._acquired.popleft()
            if not slot.released:
                slot.overdue = True
                self._fresh -= 1
        self._wake(self._limit)
