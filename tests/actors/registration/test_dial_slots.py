"""A bounded number of conversations runs at a time, and one that hangs does not block the others."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.registration.dial_slots import DialSlot, DialSlots
from plugind.protocol.health.progress import Reading


async def test_as_many_slots_are_held_at_once_as_the_limit_allows() -> None:
    slots = DialSlots(limit=2, expire_after=math.inf)
    first, second = await slots.acquire(), await slots.acquire()
    async with trio.open_nursery() as nursery:
        acquired: list[str] = []
        nursery.start_soon(_acquire, slots, acquired, "third")
        nursery.start_soon(_acquire, slots, acquired, "fourth")
        await wait_all_tasks_blocked()
        assert acquired == []
        first.release()
        await wait_all_tasks_blocked()
        assert len(acquired) == 1
        second.release()
    assert sorted(acquired) == ["fourth", "third"]


async def test_the_newest_goes_first_and_every_fourth_place_is_for_the_oldest() -> None:
    slots = DialSlots(limit=1, expire_after=math.inf)
    first = await slots.acquire()
    acquired: list[str] = []
    async with trio.open_nursery() as nursery:
        for name in ("a", "b", "c", "d", "e"):
            nursery.start_soon(_acquire_and_release, slots, acquired, name)
            await wait_all_tasks_blocked()
        first.release()
    assert acquired == ["e", "d", "c", "a", "b"]


async def test_slots_of_plugins_that_hang_expire_so_that_others_begin(autojump_clock: MockClock) -> None:
    """Fault 47: a plugin that hangs does not block a healthy one."""
    slots = DialSlots(limit=2, expire_after=0.05)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.run)
        times = []
        for _ in range(6):
            await slots.acquire()
            times.append(round(trio.current_time(), 6))
        nursery.cancel_scope.cancel()
    assert times == [0.0, 0.0, 0.05, 0.05, 0.1, 0.1]


async def hold_slots(slots: DialSlots, times: list[float], *, answers_after: float, count: int) -> None:
    """Acquire one slot after the other, and never release it; note when each came."""
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            slot = await slots.acquire()
            times.append(round(trio.current_time(), 3))
            nursery.start_soon(_answer, slot, answers_after)


async def _answer(slot: DialSlot, after: float) -> None:
    await trio.sleep(after)
    slot.answered()


async def test_slots_of_plugins_that_answer_late_expire_later(autojump_clock: MockClock) -> None:
    """More conversations would only delay their answers further, past the deadlines of their calls."""
    slots, times = DialSlots(limit=1, expire_after=0.1), list[float]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.run)
        await hold_slots(slots, times, answers_after=0.09, count=12)
        nursery.cancel_scope.cancel()
    # Twice the mean time until an answer, which comes near to 0.09 s.
    assert times == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.709, 0.827, 0.953, 1.086, 1.225]


async def test_late_answers_count_for_five_seconds(autojump_clock: MockClock) -> None:
    """Plugins that hang do not profit for longer from others that were late."""
    slots, times = DialSlots(limit=1), list[float]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.run)
        await hold_slots(slots, times, answers_after=0.9, count=40)
        last = times[-1]
        times.clear()
        for _ in range(20):
            await slots.acquire()
            times.append(round(trio.current_time() - last, 3))
        nursery.cancel_scope.cancel()
    assert times[:3] == [1.0, 1.5, 2.0]
    assert [round(later - time, 3) for time, later in pairwise(times)] == [0.5] * 8 + [0.1] * 11


async def test_releasing_an_overdue_slot_does_not_free_another(autojump_clock: MockClock) -> None:
    """Fault 47: another conversation began when it expired."""
    slots = DialSlots(limit=1, expire_after=0.1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.run)
        began = trio.current_time()
        first = await slots.acquire()
        await slots.acquire()
        first.release()
        await slots.acquire()
        assert round(trio.current_time() - began, 6) == 0.2
        nursery.cancel_scope.cancel()


async def test_conversations_beyond_the_most_that_may_be_open_are_held_up_and_say_by_what(
    autojump_clock: MockClock,
) -> None:
    """Faults 46 and 47: plugins that hang hold everything; each released slot makes room for one."""
    slots = DialSlots(limit=1, expire_after=0.05, most_open=lambda: 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.run)
        for _ in range(5):
            (await slots.acquire()).release()
        acquired = [await slots.acquire() for _ in range(3)]
        async with trio.open_nursery() as waiting:
            waiting.start_soon(slots.acquire)
            await trio.sleep(10.0)
            assert slots.read() == Reading(1, 8, "3 conversations go on, which is the limit")
            acquired[0].release()
            waiting.cancel_scope.deadline = trio.current_time() + 1.0
        assert (slots.read().waiting, slots.read().taken) == (0, 9)
        nursery.cancel_scope.cancel()


async def _acquire(slots: DialSlots, acquired: list[str], name: str) -> None:
    await slots.acquire()
    acquired.append(name)


async def _acquire_and_release(slots: DialSlots, acquired: list[str], name: str, *, retry: bool = False) -> None:
    slot = await slots.acquire(retry=retry)
    acquired.append(name)
    slot.release()


async def test_a_slot_that_is_given_up_before_its_time_goes_to_the_next_at_once() -> None:
    """Fault 56: a flooder takes its turns last, and keeps no slot from others meanwhile."""
    slots = DialSlots(limit=1, expire_after=math.inf)
    flooder = await slots.acquire()
    async with trio.open_nursery() as nursery:
        acquired: list[str] = []
        nursery.start_soon(_acquire, slots, acquired, "second")
        nursery.start_soon(_acquire, slots, acquired, "third")
        await wait_all_tasks_blocked()
        flooder.expire()
        flooder.expire()
        await wait_all_tasks_blocked()
        assert len(acquired) == 1, "it counts once"
        flooder.release()
        flooder.expire()
        await wait_all_tasks_blocked()
        assert len(acquired) == 1, "the slot was not its any more"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("late", "expires"), [(0.04, True), (0.05, True), (0.06, False)])
async def test_slots_expire_if_the_process_is_late_by_up_to_half_the_expiry(
    late: float, expires: bool, mock_clock: MockClock
) -> None:
    """Up to that delay the plugins are considered slow, and not the process."""
    # The times are multiples of 1/8, so that half the expiry is an exact float.
    slots = DialSlots(limit=1, expire_after=10.0)
    await slots.acquire()
    acquired: list[float] = []

    async def acquire() -> None:
        await slots.acquire()
        acquired.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.run)
        nursery.start_soon(acquire)
        await wait_all_tasks_blocked()
        mock_clock.jump(10.0 + late * 100)
        await wait_all_tasks_blocked()
        assert bool(acquired) == expires
        mock_clock.jump(9.5)
        await wait_all_tasks_blocked()
        assert bool(acquired) == expires
        mock_clock.jump(0.75)
        await wait_all_tasks_blocked()
        assert acquired
        nursery.cancel_scope.cancel()
