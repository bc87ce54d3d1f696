"""One answer for one task: it is given once, and whoever gives it learns that nobody waits any more."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from plugind.actors.messaging.one_answer import OneAnswer


async def test_an_answer_that_is_there_is_returned() -> None:
    address: OneAnswer[int] = OneAnswer()
    address.send_nowait(7)
    with pytest.raises(trio.WouldBlock):
        address.send_nowait(8)
    assert await address.receive() == 7


async def test_an_answer_is_awaited() -> None:
    address: OneAnswer[int] = OneAnswer()
    found: list[int] = []

    async def wait() -> None:
        found.append(await address.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        address.send_nowait(7)
        address.end()
    assert found == [7]


async def test_there_may_be_no_answer() -> None:
    address: OneAnswer[int] = OneAnswer()
    address.end()
    with pytest.raises(trio.EndOfChannel):
        await address.receive()


async def test_whoever_waits_no_more_gets_no_answer() -> None:
    address: OneAnswer[int] = OneAnswer()
    with trio.move_on_after(0):
        await address.receive()
    address.end()
    with pytest.raises(trio.BrokenResourceError):
        address.send_nowait(7)
