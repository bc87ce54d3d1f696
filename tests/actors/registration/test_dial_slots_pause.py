"""Dials pause while the process has no descriptors left, and go on as far as it has some."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.registration.dial_slots import DialSlot, DialSlots, PausedError
from plugind.protocol.health.progress import Reading


@attrs.define
class Process:
    """A process with so many descriptors left; each dial that succeeds takes one until it hangs up."""

    left: int
    slots: DialSlots = attrs.field(init=False)
    open: list[DialSlot] = attrs.field(factory=list)
    #: Which dials were notified that all pause, in order; which have begun; and how many were tried in vain.
    notified: list[int] = attrs.field(factory=list)
    begun: list[int] = attrs.field(factory=list)
    vain: int = 0

    def __attrs_post_init__(self) -> None:
        self.slots = DialSlots(limit=8, count_descriptors=lambda most: min(most, self.left))

    async def dial(self, number: int) -> None:
        """Dial like a conversation: once notified of the pause, wait through it."""
        through_pause = False
        while True:
            try:
                slot = await self.slots.acquire(through_pause=through_pause)
            except PausedError:
                self.notified.append(number)
                through_pause = True
                continue
            if self.left:
                self.left -= 1
                self.open.append(slot)
                self.begun.append(number)
                return
            slot.pause()
            self.vain += 1
            if not through_pause:
                self.notified.append(number)
            through_pause = True

    def hang_up(self) -> None:
        self.left += 1
        self.open.pop(0).release()


@asynccontextmanager
async def dialing(process: Process, count: int) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.slots.run)
        for number in range(count):
            nursery.start_soon(process.dial, number)
            await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


async def test_without_descriptors_all_that_wait_are_notified_once_and_none_dials_in_vain_again(
    autojump_clock: MockClock,
) -> None:
    """Fault 46."""
    process = Process(left=0)
    async with dialing(process, 20):
        assert sorted(process.notified) == list(range(20))
        await trio.sleep(60.0)
        assert (len(process.notified), process.vain) == (20, 1)
        assert process.slots.read() == Reading(20, 1, "no descriptors left")


async def test_dials_go_on_the_newest_first_a_moment_after_there_are_descriptors(autojump_clock: MockClock) -> None:
    process = Process(left=0)
    async with dialing(process, 20):
        waiting = list(process.notified)
        order = [waiting[at] for at in (19, 18, 17, 0, 16, 15, 14, 1, 13, 12, 11, 2, 10, 9, 8, 3, 7, 6, 5, 4)]
        process.left = 100
        await trio.sleep(0.15)
        # As many as there are slots. Trio runs those that are woken together in any order.
        assert sorted(process.begun) == sorted(order[:8])
        for _ in range(12):
            process.hang_up()
            await wait_all_tasks_blocked()
        assert process.begun[8:] == order[8:]
        assert process.slots.read() == Reading(0, 21)


async def test_only_as_many_dials_go_on_as_there_are_descriptors(autojump_clock: MockClock) -> None:
    """Fault 46: of thousands that wait, those without a descriptor are not woken in vain."""
    process = Process(left=3)
    async with dialing(process, 20):
        await trio.sleep(5.0)
        assert (len(process.begun), process.vain) == (3, 1)
        process.left = 2
        await trio.sleep(0.15)
        assert (len(process.begun), process.vain) == (5, 1)
        # Each that hangs up gives its descriptor to the next one, at once.
        for count in range(6, 12):
            process.hang_up()
            await wait_all_tasks_blocked()
            assert (len(process.begun), process.vain) == (count, 1)
