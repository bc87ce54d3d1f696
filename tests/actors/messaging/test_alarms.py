"""Tasks that wait for the same time are woken together, by one timer, and the earliest of all times comes first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
import trio.testing
from trio.testing import MockClock

from plugind.actors.health.endpoint_checks import Alarms


@attrs.define
class Sleepers:
    """Tasks that note when they were woken, by the time for which they wait."""

    alarms: Alarms
    nursery: trio.Nursery
    woken: list[tuple[float, float]] = attrs.Factory(list)

    async def add(self, time: float) -> None:
        self.nursery.start_soon(self._sleep, time)
        await trio.testing.wait_all_tasks_blocked()

    async def _sleep(self, time: float) -> None:
        await self.alarms.until(time)
        self.woken.append((time, trio.current_time()))


@asynccontextmanager
async def sleepers() -> AsyncIterator[Sleepers]:
    async with trio.open_nursery() as nursery:
        alarms = Alarms()
        nursery.start_soon(alarms.run)
        yield Sleepers(alarms, nursery)
        nursery.cancel_scope.cancel()


async def test_each_task_is_woken_at_its_time_in_whatever_order_they_come(autojump_clock: MockClock) -> None:
    async with sleepers() as tasks:
        for time in (30.0, 10.0, 20.0, 10.0):
            await tasks.add(time)
        await trio.sleep(60)
        assert tasks.woken == [(10.0, 10.0), (10.0, 10.0), (20.0, 20.0), (30.0, 30.0)]


async def test_a_thousand_tasks_have_one_deadline(autojump_clock: MockClock) -> None:
    """Otherwise each of them wakes the process."""
    async with sleepers() as tasks:
        for number in range(1000):
            tasks.nursery.start_soon(tasks.alarms.until, 10.0 + number % 4)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(4):
            statistics = trio.lowlevel.current_statistics()
            assert statistics.seconds_to_next_deadline == 10.0 + number - trio.current_time()
            left = statistics.tasks_living
            autojump_clock.jump(statistics.seconds_to_next_deadline)
            await trio.testing.wait_all_tasks_blocked()
            assert left - trio.lowlevel.current_statistics().tasks_living == 250


async def test_a_time_that_has_passed_wakes_at_once(autojump_clock: MockClock) -> None:
    async with sleepers() as tasks:
        await tasks.add(10.0)
        await tasks.add(-1.0)
        assert tasks.woken == [(-1.0, 0.0)]


async def test_a_cancelled_task_takes_nothing_from_the_others(autojump_clock: MockClock) -> None:
    async with sleepers() as tasks:
        await tasks.add(10.0)
        with trio.move_on_after(5):
            await tasks.alarms.until(10.0)
        await trio.sleep(10)
        assert tasks.woken == [(10.0, 10.0)]


async def test_what_is_run_again_wakes_those_that_waited_meanwhile(autojump_clock: MockClock) -> None:
    alarms = Alarms()
    async with trio.open_nursery() as nursery:
        tasks = Sleepers(alarms, nursery)
        for time in (5.0, 15.0):
            await tasks.add(time)
        with trio.move_on_after(1):
            await alarms.run()
        await trio.sleep(9)
        assert tasks.woken == []
        nursery.start_soon(alarms.run)
        await trio.sleep(10)
        assert tasks.woken == [(5.0, 10.0), (15.0, 15.0)]
        nursery.cancel_scope.cancel()
