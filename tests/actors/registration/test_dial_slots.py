"""A bounded number of conversations runs at a time, and one that hangs does not block the others."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.registration.dial_slots import DialSlot, DialSlots


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


async def test_a_slot_that_is_released_twice_counts_once() -> None:
    slots = DialSlots(limit=1, expire_after=math.inf)
    first = await slots.acquire()
    first.release()
    first.release()
    await slots.acquire()
    with trio.move_on_after(0) as scope:
        await slots.acquire()
    assert scope.cancelled_caught


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


async def test_retries_are_made_in_order_even_if_a_slot_is_free_when_a_later_one_arrives() -> None:
    slots = DialSlots(limit=1, expire_after=math.inf)
    first = await slots.acquire()
    acquired: list[str] = []
    async with trio.open_nursery() as nursery:
        for name in ("a", "b", "c"):
            nursery.start_soon(partial(_acquire_and_release, slots, acquired, name, retry=True))
            await wait_all_tasks_blocked()
        first.release()
    assert acquired == ["a", "b", "c"]


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


async def test_sixty_four_begin_at_once_and_more_a_tenth_of_a_second_later(autojump_clock: MockClock) -> None:
    """These are the defaults."""
    slots = DialSlots()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.run)
        began = trio.current_time()
        times = []
        for _ in range(65):
            await slots.acquire()
            times.append(round(trio.current_time() - began, 6))
        nursery.cancel_scope.cancel()
    assert times == [0.0] * 64 + [0.1]


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


async def test_however_late_plugins_answer_slots_expire_after_half_a_second(autojump_clock: MockClock) -> None:
    slots, times = DialSlots(limit=1), list[float]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.run)
        await hold_slots(slots, times, answers_after=0.9, count=40)
        nursery.cancel_scope.cancel()
    assert times[1:10] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert [round(later - time, 3) for time, later in pairwise(times[-5:])] == [0.5] * 4


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


async def test_released_slots_are_not_kept() -> None:
    """This holds even if no conversation waits, which is the usual case."""
    slots = DialSlots(limit=1, expire_after=math.inf)
    for _ in range(3):
        (await slots.acquire()).release()
    assert not slots._acquired


async def test_each_slot_expires_by_its_own_time(autojump_clock: MockClock) -> None:
    slots = DialSlots(limit=2, expire_after=0.1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.run)
        began = trio.current_time()
        await slots.acquire()
        await trio.sleep(0.06)
        times = []
        for _ in range(3):
            await slots.acquire()
            times.append(round(trio.current_time() - began, 6))
        nursery.cancel_scope.cancel()
    assert times == [0.06, 0.1, 0.16]


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


async def test_slots_do_not_expire_while_the_daemon_itself_is_late(mock_clock: MockClock) -> None:
    """The plugins are not slow then."""
    slots = DialSlots(limit=1, expire_after=0.1)
    await slots.acquire()
    acquired: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.run)
        nursery.start_soon(_acquire, slots, acquired, "second")
        await wait_all_tasks_blocked()
        mock_clock.jump(5)  # as if one round of the event loop had taken so long
        await wait_all_tasks_blocked()
        assert acquired == []
        mock_clock.jump(0.11)
        await wait_all_tasks_blocked()
        assert acquired == ["second"]
        nursery.cancel_scope.cancel()


async def test_overdue_conversations_are_bounded_by_the_descriptors(autojump_clock: MockClock) -> None:
    slots = DialSlots(limit=1, expire_after=0.05, most_open=lambda: 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.run)
        acquired = [await slots.acquire() for _ in range(3)]
        with trio.move_on_after(10) as scope:
            await slots.acquire()
        assert scope.cancelled_caught
        acquired[0].release()
        with trio.fail_after(1):
            await slots.acquire()
        nursery.cancel_scope.cancel()


async def test_a_waiter_that_is_cancelled_loses_no_slot() -> None:
    slots = DialSlots(limit=1, expire_after=math.inf)
    first = await slots.acquire()
    with trio.move_on_after(0):
        await slots.acquire()
    first.release()
    with trio.fail_after(1):
        await slots.acquire()


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
