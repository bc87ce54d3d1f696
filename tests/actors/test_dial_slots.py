"""A few conversations at a time, and none that hangs keeps another from its own."""

from __future__ import annotations

import math

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.dial_slots import Places


async def test_as_many_places_are_lent_at_once_as_the_limit_says() -> None:
    places = Places(limit=2, lapse=math.inf)
    first, second = await places.take(), await places.take()
    async with trio.open_nursery() as nursery:
        taken: list[str] = []
        nursery.start_soon(_take, places, taken, "third")
        nursery.start_soon(_take, places, taken, "fourth")
        await wait_all_tasks_blocked()
        assert taken == []
        first.give_back()
        await wait_all_tasks_blocked()
        assert len(taken) == 1
        second.give_back()
    assert sorted(taken) == ["fourth", "third"]


async def test_a_place_that_is_given_back_twice_counts_once() -> None:
    places = Places(limit=1, lapse=math.inf)
    first = await places.take()
    first.give_back()
    first.give_back()
    await places.take()
    with trio.move_on_after(0) as scope:
        await places.take()
    assert scope.cancelled_caught


async def test_whoever_waits_is_served_in_order_even_before_those_who_come_when_a_place_is_free() -> None:
    places = Places(limit=1, lapse=math.inf)
    first = await places.take()
    taken: list[str] = []
    async with trio.open_nursery() as nursery:
        for name in ("a", "b", "c"):
            nursery.start_soon(_take_and_give_back, places, taken, name)
            await wait_all_tasks_blocked()
        first.give_back()
    assert taken == ["a", "b", "c"]


async def test_places_of_those_who_hang_lapse_so_that_the_others_begin(autojump_clock: MockClock) -> None:
    """Fault 47: hung plugins take no place from healthy ones."""
    places = Places(limit=2, lapse=0.05)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(places.run)
        times = []
        for _ in range(6):
            await places.take()
            times.append(round(trio.current_time(), 6))
        nursery.cancel_scope.cancel()
    assert times == [0.0, 0.0, 0.05, 0.05, 0.1, 0.1]


async def test_sixty_four_begin_at_once_and_more_a_tenth_of_a_second_later(autojump_clock: MockClock) -> None:
    """What the daemon has, unless told otherwise."""
    places = Places()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(places.run)
        began = trio.current_time()
        times = []
        for _ in range(65):
            await places.take()
            times.append(round(trio.current_time() - began, 6))
        nursery.cancel_scope.cancel()
    assert times == [0.0] * 64 + [0.1]


async def test_nothing_is_kept_of_places_that_were_given_back() -> None:
    """Not even while nobody waits for a place, which is most of the life of a daemon."""
    places = Places(limit=1, lapse=math.inf)
    for _ in range(3):
        (await places.take()).give_back()
    assert not places._lent


async def test_each_place_lapses_by_its_own_time(autojump_clock: MockClock) -> None:
    places = Places(limit=2, lapse=0.1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(places.run)
        began = trio.current_time()
        await places.take()
        await trio.sleep(0.06)
        times = []
        for _ in range(3):
            await places.take()
            times.append(round(trio.current_time() - began, 6))
        nursery.cancel_scope.cancel()
    assert times == [0.06, 0.1, 0.16]


async def test_a_lapsed_place_that_is_given_back_at_last_makes_room_for_nobody_more(autojump_clock: MockClock) -> None:
    """Fault 47: its room was given to another when it lapsed."""
    places = Places(limit=1, lapse=0.1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(places.run)
        began = trio.current_time()
        first = await places.take()
        await places.take()
        first.give_back()
        await places.take()
        assert round(trio.current_time() - began, 6) == 0.2
        nursery.cancel_scope.cancel()


async def test_places_do_not_lapse_while_the_daemon_itself_is_late(mock_clock: MockClock) -> None:
    """Then the plugins are not what is slow."""
    places = Places(limit=1, lapse=0.1)
    await places.take()
    taken: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(places.run)
        nursery.start_soon(_take, places, taken, "second")
        await wait_all_tasks_blocked()
        mock_clock.jump(5)  # as after a round of the loop that took so long
        await wait_all_tasks_blocked()
        assert taken == []
        mock_clock.jump(0.11)
        await wait_all_tasks_blocked()
        assert taken == ["second"]
        nursery.cancel_scope.cancel()


async def test_those_who_overstay_are_bounded_by_the_descriptors(autojump_clock: MockClock) -> None:
    places = Places(limit=1, lapse=0.05, most_open=3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(places.run)
        lent = [await places.take() for _ in range(3)]
        with trio.move_on_after(10) as scope:
            await places.take()
        assert scope.cancelled_caught
        lent[0].give_back()
        with trio.fail_after(1):
            await places.take()
        nursery.cancel_scope.cancel()


async def test_a_waiter_that_is_cancelled_leaves_no_place_lost() -> None:
    places = Places(limit=1, lapse=math.inf)
    first = await places.take()
    with trio.move_on_after(0):
        await places.take()
    first.give_back()
    with trio.fail_after(1):
        await places.take()


async def _take(places: Places, taken: list[str], name: str) -> None:
    await places.take()
    taken.append(name)


async def _take_and_give_back(places: Places, taken: list[str], name: str) -> None:
    place = await places.take()
    taken.append(name)
    place.give_back()
