"""Limits the number of concurrent conversations with plugins.

In a storm thousands of sockets appear within a second, and if all were dialed at once, all calls would miss their
deadlines. So a conversation first acquires one of a few slots.

While others wait, a slot expires after a moment, so that a plugin that hangs does not keep it (behaviour 22, fault 47):
the conversation goes on, *overdue*, and the next one begins. The number of descriptors bounds the overdue ones. Plugins
that answer late do not hang: the machine is overloaded, and more conversations would make it worse. So while late
answers come, the moment is up to :data:`LONGEST_MOMENT` times as long.

Retries, of which there may be thousands, hold at most half of the slots and half of the descriptors;
``plugind.protocol.registration.dial_queue`` decides who goes first.

A plugin that listens and has read nothing yet may keep its connection for ten seconds (``info_deadline``). Such an
*idle* conversation is closed as soon as another one needs its place among the open ones, or finds no descriptor: those
of retries before others, and the oldest first.

If a dial finds neither a descriptor nor an idle conversation, dials pause, since all would fail alike (fault 46). Ten
times a second, as many begin as there are descriptors, and one begins whenever a conversation ends. The pause ends when
there are enough descriptors for all slots.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

import trio
from trio_util import AsyncBool

from ...protocol.health.progress import Reading
from ...protocol.registration.dial_queue import DialQueue

#: The reason for a pause of dials, as it is shown.
NO_DESCRIPTORS = "no descriptors left"
#: The limit of concurrent conversations of a node.
DIAL_SLOTS = 64
#: The factor by which the life of a slot may grow while plugins answer late.
LONGEST_MOMENT = 5.0
#: The weight of each answer in the mean answer time, and the seconds for which the last answer counts.
_WEIGHT = 0.125
_ANSWERS_COUNT_FOR = 5.0
#: Seconds between two counts of descriptors while dials pause.
PAUSE = 0.1


class PausedError(Exception):
    """Dials pause because the process has no descriptors left."""


class Idle(Protocol):
    """A conversation whose plugin had read nothing when it was last looked at."""

    @property
    def idle(self) -> bool:
        """Whether that still holds."""

    def close_idle(self) -> None:
        """Close the connection at once."""


class DialSlot:
    """An acquired slot."""

    __slots__ = ("_slots", "acquired_at", "overdue", "released", "retry")

    def __init__(self, slots: DialSlots, acquired_at: float, *, retry: bool) -> None:
        self._slots = slots
        #: Whether the socket has failed before.
        self.retry = retry
        self.acquired_at = acquired_at
        #: Whether the slot expired while it was held, so that another conversation has begun.
        self.overdue = False
        self.released = False

    def release(self) -> None:
        """Release the slot at the end of the conversation. Further calls do nothing."""
        if not self.released:
            self.released = True
            self._slots.on_release(self)

    def answered(self) -> None:
        """Note that the plugin has answered its first call."""
        self._slots.on_answered(trio.current_time() - self.acquired_at)

    def expire(self) -> None:
        """Let another conversation begin now, because this one takes more than its share of the work."""
        if not self.released and not self.overdue:
            self._slots.on_expired(self)

    def note_idle(self, conversation: Idle) -> None:
        """Note that the plugin has read nothing, so that ``conversation`` can be closed for another one."""
        if not self.released:
            self._slots.on_idle(self, conversation)

    def forget_idle(self) -> None:
        """Note that the plugin is not idle, or is no longer."""
        self._slots.on_busy(self)

    def pause(self) -> None:
        """Give the slot back and pause all dials, because the process had no descriptor left for this one."""
        self.released = True
        self._slots.on_exhausted(self)


class _Waiter:
    """A request for a slot that waits in the queue."""

    __slots__ = ("retry", "task", "through_pause", "turned_away")

    def __init__(self, *, retry: bool, through_pause: bool) -> None:
        self.task = trio.lowlevel.current_task()
        self.retry = retry
        self.through_pause = through_pause
        #: Whether the task was woken because dials pause, and not because there is a slot.
        self.turned_away = False


class DialSlots:
    """The slots of one node.

    At most ``limit`` conversations are under way at once, not counting those that have lasted longer than
    ``expire_after`` seconds, or longer while plugins answer late. At most ``most_open()`` are open, counting those.
    Retries are at most half of either.
    """

    def __init__(
        self,
        *,
        limit: int = DIAL_SLOTS,
        expire_after: float = 0.1,
        most_open: Callable[[], int] = lambda: 4096,
        count_descriptors: Callable[[int], int] = lambda most: most,
    ) -> None:
        """Count with ``count_descriptors(most)`` how many descriptors are left, up to ``most``, while dials pause.

        :meth:`run` reads ``most_open``, since a program may raise its limit of descriptors before that.
        """
        self._limit = limit
        self._expire_after = expire_after
        #: The mean time from a slot to the plugin's first answer, over the last answers that came while others waited.
        self._answered_after = 0.0
        #: When the last of these answers came.
        self._answered_at = -math.inf
        self._count_most_open = most_open
        self._most_open = most_open()
        self._count_descriptors = count_descriptors
        self._paused = False
        #: The number of slots that have not expired, and of all slots that are held; of each, those of retries.
        self._fresh = self._fresh_retries = 0
        self._open = self._open_retries = 0
        self._ever_acquired = 0
        #: In order. Released and overdue slots are dropped from the front.
        self._acquired: deque[DialSlot] = deque()
        #: The idle conversations in the order in which they were found, those of retries apart. ``OrderedDict`` finds
        #: the first key at once, even after thousands were removed.
        self._idle: OrderedDict[DialSlot, Idle] = OrderedDict()
        self._idle_retries: OrderedDict[DialSlot, Idle] = OrderedDict()
        self._queue = DialQueue[_Waiter]()
        self._contended = AsyncBool()
        #: False if nobody waits. Most conversations read only this, which costs less than asking the queue.
        self._maybe_waiting = False

    async def acquire(self, *, retry: bool = False, through_pause: bool = True) -> DialSlot:
        """Return a slot as soon as one is free; ``retry`` says that the socket has failed before.

        Raises:
          PausedError: if dials pause, or begin to pause before a slot is free, unless ``through_pause`` is true.
        """
        if self._paused and not (self._maybe_waiting and self._queue):
            # Nobody has counted descriptors since the last waiting conversation went on.
            self._go_on(self._limit)
        if self._paused and not through_pause:
            raise PausedError
        waits = self._maybe_waiting and self._queue.is_before(retry=retry)
        if waits or self._paused or not self._is_free(retry=retry):
            # The task that wakes this one counts the slot.
            await self._wait(_Waiter(retry=retry, through_pause=through_pause))
        else:
            self._make_room(retry=retry)
            self._count(retry=retry)
        slot = DialSlot(self, trio.current_time(), retry=retry)
        self._acquired.append(slot)
        self._ever_acquired += 1
        return slot

    async def _wait(self, waiter: _Waiter) -> None:
        self._queue.add(waiter, trio.current_time(), retry=waiter.retry)
        self._contended.value = self._maybe_waiting = True

        def abort(_: object) -> trio.lowlevel.Abort:
            self._queue.discard(waiter)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        if waiter.turned_away:
            raise PausedError

    def on_answered(self, seconds: float) -> None:
        """Note how long a plugin's first answer took; only :meth:`DialSlot.answered` calls this."""
        if self._maybe_waiting:
            now = trio.current_time()
            before = self._answered_after if self._counts(now) else 0.0
            self._answered_after, self._answered_at = before + _WEIGHT * (seconds - before), now

    def _counts(self, now: float) -> bool:
        return now - self._answered_at <= _ANSWERS_COUNT_FOR

    def _moment(self, now: float) -> float:
        """Return the seconds after which a slot expires."""
        if not self._counts(now):
            return self._expire_after
        return max(self._expire_after, min(2.0 * self._answered_after, LONGEST_MOMENT * self._expire_after))

    def on_release(self, slot: DialSlot) -> None:
        """Take a slot back; only :meth:`DialSlot.release` calls this."""
        self._take_back(slot)
        if self._paused:
            self._go_on(1)
        else:
            self._wake(self._limit)

    def on_expired(self, slot: DialSlot) -> None:
        """Count a slot as overdue; only :meth:`DialSlot.expire` calls this."""
        slot.overdue = True
        self._forget_fresh(slot)
        self._drop_settled()
        if not self._paused:
            self._wake(self._limit)

    def on_idle(self, slot: DialSlot, conversation: Idle) -> None:
        """Remember an idle conversation; only :meth:`DialSlot.note_idle` calls this."""
        (self._idle_retries if slot.retry else self._idle).setdefault(slot, conversation)
        if not self._paused:
            self._wake(self._limit)

    def on_busy(self, slot: DialSlot) -> None:
        """Forget that a conversation is idle, if it is; only :meth:`DialSlot.forget_idle` calls this."""
        self._idle.pop(slot, None)
        self._idle_retries.pop(slot, None)

    def close_idle(self, *, retry: bool = False) -> bool:
        """Close an idle conversation and return whether there was one; for a ``retry`` only that of another retry."""
        found = self._first_idle(retry=retry)
        if found is None:
            return False
        slot, conversation = found
        conversation.close_idle()
        slot.released = True
        self._take_back(slot)
        return True

    def _first_idle(self, *, retry: bool) -> tuple[DialSlot, Idle] | None:
        """Return the idle conversation that is closed first, by the rule of :meth:`close_idle`."""
        for conversations in (self._idle_retries,) if retry else (self._idle_retries, self._idle):
            while conversations:
                slot, conversation = next(iter(conversations.items()))
                if conversation.idle:
                    return slot, conversation
                del conversations[slot]
        return None

    def on_exhausted(self, slot: DialSlot) -> None:
        """Take a slot back and pause; only :meth:`DialSlot.pause` calls this."""
        self._take_back(slot)
        self._paused = True
        for waiter in self._queue.remove(lambda waiter: not waiter.through_pause):
            waiter.turned_away = True
            trio.lowlevel.reschedule(waiter.task)

    def _take_back(self, slot: DialSlot) -> None:
        self._open -= 1
        self._open_retries -= slot.retry
        if self._idle or self._idle_retries:
            self.on_busy(slot)
        if not slot.overdue:
            self._forget_fresh(slot)
        self._drop_settled()

    def _forget_fresh(self, slot: DialSlot) -> None:
        self._fresh -= 1
        self._fresh_retries -= slot.retry

    def _go_on(self, most: int) -> None:
        """Let at most ``most`` paused dials go on, as far as the process has descriptors for them."""
        left = self._count_descriptors(most)
        # Close idle conversations for all new plugins; if only retries wait, for one of these.
        needed = min(most, max(1, self._queue.first_attempts))
        while left < needed and self.close_idle():
            left += 1
        self._paused = left < self._limit
        self._wake(left)

    async def run(self) -> None:
        """Expire slots, and resume paused dials, while conversations wait. No timer runs otherwise."""
        self._most_open = self._count_most_open()
        while True:
            await self._contended.wait_value(value_or_predicate=True)
            resume = 0.0
            while self._queue:
                if self._paused:
                    await trio.sleep(PAUSE)
                    self._go_on(self._limit)
                    continue
                self._drop_settled()
                now = trio.current_time()
                oldest = self._acquired[0].acquired_at if self._acquired else now
                due = max(oldest + self._moment(now), resume)
                await trio.sleep_until(due)
                now = trio.current_time()
                if now - due > self._expire_after / 2:
                    # This process was busy, and the plugins may not be slow: more conversations would delay them
                    # further.
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
        elif self._open_retries >= _half(self._most_open):
            held_up = f"{self._open_retries} conversations with sockets that failed before go on, which is the limit"
        return Reading(len(self._queue), self._ever_acquired, held_up)

    def _is_free(self, *, retry: bool) -> bool:
        """Whether there is a slot, or :meth:`_make_room` makes room for one."""
        if self._fresh >= self._limit or (retry and self._fresh_retries >= _half(self._limit)):
            return False
        return not self._is_full(retry=retry) or self._first_idle(retry=retry) is not None

    def _is_full(self, *, retry: bool) -> bool:
        """Whether the limit of open conversations is reached."""
        return self._open >= self._most_open or (retry and self._open_retries >= _half(self._most_open))

    def _make_room(self, *, retry: bool) -> None:
        """Close an idle conversation if its place is needed; :meth:`_is_free` has found that one exists."""
        if self._is_full(retry=retry):
            self.close_idle(retry=retry)

    def _count(self, *, retry: bool) -> None:
        self._fresh += 1
        self._open += 1
        self._fresh_retries += retry
        self._open_retries += retry

    def _wake(self, most: int) -> None:
        while self._maybe_waiting and most and self._is_free(retry=False):
            waiter = self._queue.take(trio.current_time(), retries=self._is_free(retry=True))
            if waiter is None:
                return
            most -= 1
            self._make_room(retry=waiter.retry)
            self._count(retry=waiter.retry)
            trio.lowlevel.reschedule(waiter.task)

    def _drop_settled(self) -> None:
        while self._acquired and (self._acquired[0].released or self._acquired[0].overdue):
            self._acquired.popleft()

    def _expire(self, now: float) -> None:
        moment = self._moment(now)
        while self._acquired and (self._acquired[0].released or self._acquired[0].acquired_at + moment <= now):
            slot = self._acquired.popleft()
            if not slot.released:
                slot.overdue = True
                self._forget_fresh(slot)
        self._wake(self._limit)


def _half(of: int) -> int:
    return max(1, of // 2)
