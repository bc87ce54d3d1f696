"""The turns of a handler: one call at a time for each name, in the order of the asks (behaviour 21)."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from plugind.actors.handlers.served import NameTurns


async def test_a_turn_is_passed_on_in_the_order_of_the_asks_and_is_free_after_the_last() -> None:
    turns, order = NameTurns(), list[int]()

    async def take(number: int) -> None:
        await turns.take("x")
        order.append(number)

    assert turns.take_nowait("x")
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(take, number)
            await wait_all_tasks_blocked()
        for taken in range(4):
            assert order == list(range(taken))
            assert not turns.take_nowait("x")
            turns.pass_on("x")
            await wait_all_tasks_blocked()
    assert order == [0, 1, 2, 3]
    turns.pass_on("x")
    assert not turns._taken, "nothing is kept of a name without calls"
    assert turns.take_nowait("x")


async def test_nobody_overtakes_a_task_to_which_the_turn_was_passed_on_and_that_has_not_run_yet() -> None:
    turns = NameTurns()
    assert turns.take_nowait("x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.take, "x")
        await wait_all_tasks_blocked()
        turns.pass_on("x")
        assert not turns.take_nowait("x")
    turns.pass_on("x")
    assert turns.take_nowait("x")
