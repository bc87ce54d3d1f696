"""Plugins that were refused a name try again one after the other when it is free: whole timelines of dials."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.plugins.info import InstancePolicy
from plugind.testing import Accepting, FakeHandler, SimulatedNode
from plugind.tests.actors.registration.timelines import red


async def dials_after_the_release(node: SimulatedNode, first: Accepting, count: int = 3) -> list[tuple[float, str]]:
    """Let ``count`` plugins wait for the name of one that is removed then; ``first`` is how the first one accepts."""
    holder = node.plug("holder.sock", red())
    await node.settled()
    line = []
    for number in range(count):
        line.append(node.plug(f"{number}.sock", red()))
        await trio.sleep(0.001)
    # Each is refused at its tries after 0.5, 1.5, 3.5 and 7.5 seconds, in the same order.
    await trio.sleep_until(10.0)
    line[0].accepting = first
    before = len(node.network.dials)
    holder.stop()
    await trio.sleep_until(15.0)
    return [(round(time, 3), path.removeprefix("/plugins/")) for time, path in node.network.dials[before:]]


@pytest.mark.parametrize(
    ("first", "dials"),
    [
        (Accepting.SERVES, [(10.0, "0.sock")]),
        (Accepting.CLOSES, [(10.0, "0.sock"), (10.0, "1.sock")]),
        (Accepting.SILENT, [(10.0, "0.sock"), (11.0, "1.sock")]),
    ],
    ids=["registers", "fails", "hangs"],
)
async def test_the_next_in_line_is_dialed_and_the_one_after_it_once_that_has_failed(
    first: Accepting, dials: list[tuple[float, str]], autojump_clock: MockClock
) -> None:
    """Fault 49, behaviour 37: all of them were dialed at once when one registered socket was removed."""
    handler = FakeHandler(instances=InstancePolicy.REJECT)
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        assert await dials_after_the_release(node, first) == dials


async def test_a_turn_is_over_after_a_second_at_the_latest(autojump_clock: MockClock) -> None:
    """Fault 30: the dial of a socket with a full backlog takes ten seconds."""
    handler = FakeHandler(instances=InstancePolicy.REJECT)
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        dials = await dials_after_the_release(node, Accepting.BACKLOG_FULL)
        assert [dial for dial in dials if dial[1] != "0.sock"] == [(11.0, "1.sock")]
        assert dials[0] == (10.0, "0.sock")
