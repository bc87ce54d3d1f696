"""How late this process may be before its places no longer lapse, and what bounds those that overstay."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.dial_slots import Places


@pytest.mark.parametrize(("late", "lapses"), [(0.04, True), (0.05, True), (0.06, False)])
async def test_half_a_lapse_too_late_is_still_in_time(late: float, lapses: bool, mock_clock: MockClock) -> None:
    """Then it is the plugins that are slow, and not this process."""
    # Whole numbers of eighths, so that half a lapse is half a lapse to the bit.
    places = Places(limit=1, lapse=10.0)
    await places.take()
    taken: list[float] = []

    async def take() -> None:
        await places.take()
        taken.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(places.run)
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        mock_clock.jump(10.0 + late * 100)
        await wait_all_tasks_blocked()
        assert bool(taken) == lapses
        mock_clock.jump(9.5)
        await wait_all_tasks_blocked()
        assert bool(taken) == lapses
        mock_clock.jump(0.75)
        await wait_all_tasks_blocked()
        assert taken
        nursery.cancel_scope.cancel()


async def test_the_bound_of_those_that_overstay_holds_however_many_were_given_back(autojump_clock: MockClock) -> None:
    """Fault 46: a place that is given back makes room for one."""
    places = Places(limit=1, lapse=0.05, most_open=2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(places.run)
        for _ in range(5):
            (await places.take()).give_back()
        for _ in range(2):
            await places.take()
        with trio.move_on_after(10) as scope:
            await places.take()
        assert scope.cancelled_caught
        nursery.cancel_scope.cancel()
