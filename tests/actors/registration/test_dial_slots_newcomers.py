"""Retries hold at most half of the slots and the descriptors, so a plugin that is new does not wait for them."""

from __future__ import annotations

from functools import partial

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.registration.dial_slots import DialSlots
from plugind.protocol.health.progress import Reading


async def seconds_to_dial(slots: DialSlots) -> float:
    began = trio.current_time()
    (await slots.acquire()).release()
    return round(trio.current_time() - began, 6)


async def test_retries_hold_half_of_the_slots_at_most() -> None:
    slots = DialSlots(limit=4, expire_after=1e9)
    retries = [await slots.acquire(retry=True) for _ in range(2)]
    async with trio.open_nursery() as nursery:
        acquired: list[str] = []

        async def acquire(name: str, *, retry: bool) -> None:
            await slots.acquire(retry=retry)
            acquired.append(name)

        nursery.start_soon(partial(acquire, "retry", retry=True))
        await wait_all_tasks_blocked()
        assert acquired == []
        await acquire("first", retry=False)
        await acquire("second", retry=False)
        assert acquired == ["first", "second"]
        retries[0].release()
    assert acquired == ["first", "second", "retry"]


async def test_a_first_attempt_gets_the_slot_that_a_retry_has_waited_for() -> None:
    slots = DialSlots(limit=1, expire_after=1e9)
    occupied = await slots.acquire()
    acquired: list[str] = []

    async def acquire(name: str, *, retry: bool) -> None:
        slot = await slots.acquire(retry=retry)
        acquired.append(name)
        slot.release()

    async with trio.open_nursery() as nursery:
        for name, is_retry in (("a", True), ("b", True), ("new", False)):
            nursery.start_soon(partial(acquire, name, retry=is_retry))
            await wait_all_tasks_blocked()
        occupied.release()
    assert acquired == ["new", "a", "b"]


async def test_silent_sockets_that_failed_hold_half_of_the_descriptors_at_most(autojump_clock: MockClock) -> None:
    """Fault 47: the rest is there for newcomers; the health report says what the others wait for."""
    slots = DialSlots(limit=2, expire_after=0.05, most_open=lambda: 6)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.run)
        for _ in range(5):
            nursery.start_soon(partial(slots.acquire, retry=True))
        await trio.sleep(1.0)
        held_up = "3 conversations with sockets that failed before go on, which is the limit"
        assert slots.read() == Reading(2, 3, held_up)
        assert await seconds_to_dial(slots) == 0.0
        nursery.cancel_scope.cancel()


async def test_the_limit_of_descriptors_counts_that_a_program_has_raised_before_the_node_starts(
    autojump_clock: MockClock,
) -> None:
    """Fault 47: a program may make a node first, and raise its limit then."""
    limits = [2]
    slots = DialSlots(limit=1, expire_after=0.05, most_open=lambda: limits[0])
    limits[0] = 3
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.run)
        with trio.fail_after(1):
            for _ in range(3):
                await slots.acquire()
        nursery.cancel_scope.cancel()


async def test_a_retry_that_is_given_up_while_it_waits_takes_no_slot() -> None:
    slots = DialSlots(limit=1, expire_after=1e9)
    occupied = await slots.acquire()
    with trio.move_on_after(0):
        await slots.acquire(retry=True)
    assert slots.read().waiting == 0
    occupied.release()
    with trio.fail_after(1):
        await slots.acquire()
