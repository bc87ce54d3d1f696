"""Limits that change while a node runs."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.backoff import RestartIntensity
from plugind.protocol.plugins.info import InfoLimits
from plugind.protocol.plugins.status import StateName
from plugind.protocol.settings.config import Config
from plugind.supervisor import GaveUpError
from plugind.testing import DEFAULT_CONFIG, FakeHandler, FakePlugin, SimulatedNode
from plugind.tests.actors.registration.timelines import at, steps_at


def instances(most: int) -> Config:
    return attrs.evolve(DEFAULT_CONFIG, max_instances=most)


def red() -> FakePlugin:
    return FakePlugin("Colour", "red")


def registered(node: SimulatedNode) -> list[str]:
    return sorted(path for path, status in node.statuses.items() if status.state is StateName.REGISTERED)


async def test_plugins_that_wait_for_room_under_their_name_get_it_at_once_when_there_is_more(
    autojump_clock: MockClock,
) -> None:
    async with SimulatedNode(instances(1), handlers={"Colour": FakeHandler()}) as node:
        for number in range(4):
            node.plug(f"{number}.sock", red())
            await trio.sleep(1.0)
        assert registered(node) == ["/plugins/0.sock"]
        await trio.sleep_until(1000.0)  # Those that wait are far from their next tries.
        await node.reconfigure(instances(3))
        await trio.sleep(0.5)
        assert registered(node) == [f"/plugins/{number}.sock" for number in range(3)]
        assert [node.timeline(f"{number}.sock")[-6:] for number in (1, 2)] == [steps_at(1000.0)] * 2
        # The fourth is next, when one of them goes.
        node.directory.unlink("/plugins/0.sock")
        await trio.sleep(0.5)
        assert registered(node) == [f"/plugins/{number}.sock" for number in range(1, 4)]


async def test_a_lower_limit_takes_nobody_away_and_lets_nobody_in(autojump_clock: MockClock) -> None:
    async with SimulatedNode(instances(3), handlers={"Colour": FakeHandler()}) as node:
        plugged = [node.plug(f"{number}.sock", red()) for number in range(3)]
        await trio.sleep(20.0)
        await node.reconfigure(instances(2))
        await trio.sleep(10.0)
        assert registered(node) == [plugin.path for plugin in plugged]
        for plugin in plugged:
            plugin.restart()
            await trio.sleep(1.0)
        # The first two to go left room for nobody; the last one that was there before was replaced by one of them.
        assert len(registered(node)) == 2


async def test_the_next_crash_is_judged_by_the_intensity_that_was_set_last(autojump_clock: MockClock) -> None:
    def allowing(restarts: int) -> Config:
        return attrs.evolve(DEFAULT_CONFIG, intensity=RestartIntensity(restarts))

    async def crash(node: SimulatedNode, times: int) -> None:
        for _ in range(times):
            node.crash("reconciler")
            await trio.sleep(1.0)

    async def run() -> None:
        async with SimulatedNode(allowing(1), handlers={"Colour": FakeHandler()}) as node:
            await crash(node, 1)
            await node.reconfigure(allowing(3))
            await crash(node, 2)
            node.plug("a.sock", red())
            await node.settled()
            assert registered(node) == ["/plugins/a.sock"]
            # The crashes of the last minute are too many for one more.
            await node.reconfigure(allowing(2))
            assert registered(node) == ["/plugins/a.sock"]
            await crash(node, 1)

    with pytest.raises(GaveUpError, match="actors crashed more often than 2 in 60 s"):
        await run()


async def test_the_next_info_is_judged_by_the_limits_that_were_set_last(autojump_clock: MockClock) -> None:
    """The info that is under way is judged by those with which it was asked for."""
    plugin = FakePlugin("Colour", "red", versions=("1", "2", "3"), delay=0.5)
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        node.plug("a.sock", plugin)
        await trio.sleep(0.25)
        await node.reconfigure(attrs.evolve(DEFAULT_CONFIG, info_limits=InfoLimits(max_versions=2)))
        await trio.sleep(20.0)
        assert node.timeline("a.sock") == [
            *at(0.2, "asking-info"),
            *at(0.5, "validating", "registering", "notifying"),
            *at(1.0, "registered"),
        ]
        node.plug("b.sock", attrs.evolve(plugin, name="blue"))
        await trio.sleep(0.75)
        status = node.status("b.sock")
        assert status is not None
        assert status.cause == "plugin validation failed: more than 2 supported versions"
