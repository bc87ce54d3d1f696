"""Sockets with a full backlog are waited for without a dial slot, and are not polled all the time."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from plugind.testing import Accepting, FakePlugin, SimulatedNode


def csi(name: str) -> FakePlugin:
    return FakePlugin("CSIPlugin", name)


async def test_a_newcomer_among_sockets_with_full_backlogs_is_registered_at_once(autojump_clock: MockClock) -> None:
    """Fault 30: each held a slot for its ten seconds; 3,000 delayed good plugins by half a minute."""
    async with SimulatedNode() as node:
        for number in range(200):
            node.plug(f"full-{number}.sock", csi(f"full-{number}")).accepting = Accepting.BACKLOG_FULL
        for moment in (0.05, 3.0, 9.0, 10.5, 30.0):
            await trio.sleep_until(moment)
            node.plug(f"good-{moment:g}.sock", csi(f"good-{moment:g}"))
            await trio.sleep(0.01)
            assert node.state(f"good-{moment:g}.sock") == "registered"
            assert node.health()["dial slots"].waiting == 0


async def test_the_pauses_between_tries_grow_until_the_time_is_over(autojump_clock: MockClock) -> None:
    """Fault 30: a full backlog was tried twenty times in each second."""
    async with SimulatedNode() as node:
        plugin = node.plug("a.sock", csi("a"))
        plugin.accepting = Accepting.BACKLOG_FULL
        await trio.sleep_until(10.2)
        assert [round(time, 2) for time, _ in node.network.dials] == [
            0.0, 0.01, 0.03, 0.07, 0.15, 0.31, 0.63, 1.27, 2.55, 4.55, 6.55, 8.55, 10.0,
        ]  # fmt: skip
        status = node.status("a.sock")
        assert status is not None
        assert (status.state, status.cause) == ("waiting", "its backlog was full for 10 s")


async def test_a_plugin_is_registered_once_its_backlog_has_room(autojump_clock: MockClock) -> None:
    """Fault 30: its attempt goes on meanwhile, and is the first one."""
    async with SimulatedNode() as node:
        plugin = node.plug("a.sock", csi("a.example.com"))
        plugin.accepting = Accepting.BACKLOG_FULL
        await trio.sleep_until(0.5)
        plugin.accepting = Accepting.SERVES
        await node.settled()
        assert node.history("a.sock")[-1].attempt == 1
        assert node.timeline("a.sock")[-1] == (0.63, "registered")


async def test_a_socket_that_vanishes_while_its_backlog_is_full_is_dialed_no_more(autojump_clock: MockClock) -> None:
    async with SimulatedNode() as node:
        plugin = node.plug("a.sock", csi("a"))
        plugin.accepting = Accepting.BACKLOG_FULL
        await trio.sleep_until(0.5)
        plugin.stop()
        await trio.sleep_until(20.0)
        assert max(time for time, _ in node.network.dials) < 0.5
        assert node.state("a.sock") is None
