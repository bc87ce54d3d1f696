"""Plugins that listen and do not serve yet, and plugins that read and stay silent (fault 32)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.registration.info_deadline import NEEDED, NOT_READ
from plugind.testing import Accepting, FakeHandler, FakePlugin, PluggedIn, SimulatedNode
from plugind.tests.actors.registration.timelines import Line, asked, notified_ok, red, registered_at, steps_at

GET_INFO = "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket /plugins/a.sock, err: "
#: What is shown while a plugin is given more than GetInfo's second.
LATE: list[Line] = [(1.0, "asking-info")]


@pytest.fixture
def handler() -> FakeHandler:
    return FakeHandler()


def plug(node: SimulatedNode, accepting: Accepting, **faults: Any) -> PluggedIn:
    plugin = node.plug("a.sock", red(**faults))
    plugin.accepting = accepting
    return plugin


async def test_a_plugin_that_serves_three_seconds_after_it_listens_is_dialed_once(
    autojump_clock: MockClock, handler: FakeHandler
) -> None:
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        plugin.accept_after(3.0)
        await node.settled()
        assert node.timeline("a.sock") == [(0.2, "asking-info"), *LATE, *steps_at(3.0)[2:]]
        assert [entry.reason for entry in node.history("a.sock")] == [None, NOT_READ, None, None, None, None]
        assert node.network.dials == [(0.0, "/plugins/a.sock")]
        assert plugin.calls == [asked(3.0), notified_ok(3.0)]


async def test_a_plugin_that_never_reads_fails_when_the_time_of_the_dial_is_over(
    autojump_clock: MockClock, handler: FakeHandler
) -> None:
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = plug(node, Accepting.LATE)
        await trio.sleep(10.2)
        assert node.timeline("a.sock") == [(0.2, "asking-info"), *LATE, (10.0, "waiting")]
        reason = "its process listens, and has not read anything in 10 s"
        assert node.history("a.sock")[2].reason == GET_INFO + reason
        assert node.history("a.sock")[2].attempt == 1
        assert plugin.connections == 1  # The peer has not read the end either.
        assert all(stream.closed for _, stream in node.network.opened)


async def test_the_second_of_a_plugin_that_says_nothing_begins_with_the_look_that_finds_the_request_read(
    autojump_clock: MockClock, handler: FakeHandler
) -> None:
    """It reads after 2.5 s. The looks come after 0.1, 1, 2 and 4 s; the last one shows that the second has begun."""
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = plug(node, Accepting.LATE)
        await trio.sleep(2.5)
        plugin.accepting = Accepting.SILENT
        await trio.sleep(3.0)
        assert node.timeline("a.sock") == [(0.2, "asking-info"), *LATE, (4.0, "asking-info"), (5.0, "waiting")]
        assert [entry.reason for entry in node.history("a.sock")[1:3]] == [NOT_READ, None]


async def test_a_dial_that_finds_no_descriptor_gets_that_of_a_plugin_that_reads_nothing(
    autojump_clock: MockClock, handler: FakeHandler
) -> None:
    """Fault 46: no dial pauses. The plugin that was hung up on is tried again after its backoff."""
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = plug(node, Accepting.LATE)
        await trio.sleep(3.0)
        node.network.exhausted = 1
        node.plug("b.sock", FakePlugin("Colour", "blue"))
        await trio.sleep(0.2)
        assert node.timeline("b.sock") == registered_at(3.0)
        assert node.timeline("a.sock")[1:] == [*LATE, (3.0, "waiting")]
        assert node.history("a.sock")[2].reason == GET_INFO + NEEDED
        plugin.accepting = Accepting.SERVES
        await node.settled()
        assert node.timeline("a.sock")[3:] == steps_at(3.5)


async def test_newcomers_do_not_wait_for_plugins_that_read_nothing(
    autojump_clock: MockClock, handler: FakeHandler
) -> None:
    """Faults 32 and 47: each of 200 gives its slot back after a tenth of a second, of which there are eight."""
    node = SimulatedNode(handlers={"Colour": handler})
    node.network.dial_slots = 8
    async with node:
        late = [node.plug(f"{number}.sock", red()) for number in range(200)]
        for plugin in late:
            plugin.accepting = Accepting.LATE
        for number in range(20):
            await trio.sleep(0.237)
            began, name = node.now, f"new-{number}"
            node.plug(f"{name}.sock", FakePlugin("Colour", name))
            await trio.sleep(0.15)
            line = {state: time for time, state in node.timeline(f"{name}.sock")}
            assert line["registered"] - began <= 0.1
        for plugin in late:
            plugin.accepting = Accepting.SERVES
        await trio.sleep(0.2)
        # All serve before their ten seconds are over: none was dialed twice.
        assert len(node.network.dials) == len({path for _, path in node.network.dials}) == 220
