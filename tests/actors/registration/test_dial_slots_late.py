"""How late the process may be before its slots stop expiring, and the bound on overdue slots."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.registration.dial_slots import DialSlots


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


async def test_the_bound_of_overdue_slots_holds_however_many_were_released(autojump_clock: MockClock) -> None:
    """Fault 46: each released slot makes room for one."""
    slots = DialSlots(limit=1, expire_after=0.05, most_open=lambda: 2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.run)
        for _ in range(5):
            (await slots.acquire()).release()
        for _ in range(2):
            await slots.acquire()
        with trio.move_on_after(10) as scope:
            await slots.acquire()
        assert scope.cancelled_caught
        nursery.cancel_scope.cancel()
