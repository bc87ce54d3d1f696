"""Faults of sockets and connections, and their effect on a registration, on a whole node with the real wire."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.plugins import PluggedIn
from plugind.testing import Accepting, FakeHandler, FakePlugin, SimulatedNode, Takes
from plugind.tests.actors.registration.timelines import at, red, steps_at

GET_INFO = "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket /plugins/a.sock, err: "
DIAL = "RegisterPlugin error -- dial failed at socket /plugins/a.sock, err: "


@pytest.fixture
def handler() -> FakeHandler:
    return FakeHandler()


async def test_a_full_backlog_is_waited_for_within_the_deadline_of_the_dial(
    autojump_clock: MockClock, handler: FakeHandler
) -> None:
    """Behaviours 26 and 27, fault 30: EAGAIN is retried until the deadline, and is then a counted failure."""
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        plugin.accepting = Accepting.BACKLOG_FULL
        await trio.sleep(12.0)
        assert node.timeline("a.sock") == [(0.2, "dialing"), (10.0, "waiting"), (10.5, "dialing")]
        assert node.history("a.sock")[1].reason == DIAL + "the backlog of '/plugins/a.sock' was full for 10 s"
        plugin.accepting = Accepting.SERVES
        await node.settled()
        assert node.state("a.sock") == "registered"
        # The pauses between tries grow to two seconds.
        assert round(node.now, 6) == 13.05


async def test_a_socket_without_permission_to_connect_is_shown_and_retried_with_backoff(
    autojump_clock: MockClock, handler: FakeHandler
) -> None:
    """Fault 29."""
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        plugin.accepting = Accepting.DENIED
        await node.settled(patience=0.0)
        assert node.timeline("a.sock") == at(0.0, "waiting")
        assert node.history("a.sock")[0].reason == DIAL + "cannot connect to '/plugins/a.sock': Permission denied"
        plugin.accepting = Accepting.SERVES
        await node.settled()
        assert node.timeline("a.sock")[1:] == steps_at(0.5)


async def test_a_plugin_that_accepts_and_stays_silent_fails_at_the_deadline_of_get_info(
    autojump_clock: MockClock, handler: FakeHandler
) -> None:
    """Fault 32: the plugin does not serve the connection, and no byte arrives."""
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        plugin.accepting = Accepting.SILENT
        await node.settled(patience=0.0)
        assert node.timeline("a.sock") == [(0.2, "asking-info"), (1.0, "waiting")]
        assert node.history("a.sock")[1].reason == GET_INFO + "no answer in 1 s"
        plugin.accepting = Accepting.SERVES
        await node.settled()
        assert node.timeline("a.sock")[2:] == steps_at(1.5)


def dies(plugin: PluggedIn) -> None:
    plugin.crash()
    plugin.listen()


@pytest.mark.parametrize("loses", [dies, PluggedIn.reset, PluggedIn.half_close])
async def test_a_connection_that_is_lost_during_get_info_fails_that_try_alone(
    autojump_clock: MockClock, handler: FakeHandler, loses: Callable[[PluggedIn], None]
) -> None:
    """Faults 34, 37 and 60: nothing is registered."""
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red(hang="get-info"))
        await trio.sleep(0.25)
        loses(plugin)
        plugin.plugin = red()
        await node.settled(patience=0.0)
        assert node.timeline("a.sock") == [(0.2, "asking-info"), (0.25, "waiting")]
        assert (node.history("a.sock")[1].reason or "").startswith(GET_INFO + "UNAVAILABLE: ")
        assert handler.calls == []
        await node.settled()
        assert node.timeline("a.sock")[2:] == steps_at(0.75)


async def test_one_byte_a_second_does_not_extend_a_deadline(autojump_clock: MockClock, handler: FakeHandler) -> None:
    """Fault 63: the deadline covers the whole call, not the time between two bytes."""
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        plugin.seconds_per_byte = 0.5
        await node.settled(patience=0.0)
        assert node.timeline("a.sock") == [(0.2, "asking-info"), (1.0, "waiting")]


async def test_all_dials_pause_while_there_are_no_descriptors_and_none_is_an_attempt(
    autojump_clock: MockClock, handler: FakeHandler
) -> None:
    """Fault 46: those that wait for a slot are told too, and a minute without descriptors costs each a moment."""
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.network.exhausted = 1000
        for number in range(100):
            node.plug(f"{number}.sock", FakePlugin("Colour", f"c{number}"))
        await trio.sleep(60.0)
        shown = {(status.state, status.reason, status.attempt) for status in node.statuses.values()}
        assert shown == {("dialing", "no descriptors left", 1)}
        assert len(node.statuses) == 100
        assert len(node.network.dials) <= 64, "no dial is tried in vain while all pause"
        health = node.health()["dial slots"]
        assert (health.condition, health.reason) == ("degraded", "no descriptors left; 100 wait")
        began, node.network.exhausted = node.now, 0
        await node.settled()
        assert {status.state for status in node.statuses.values()} == {"registered"}
        assert {status.attempt for status in node.statuses.values()} == {1}
        assert node.now - began < 1.0
        assert node.health()["dial slots"].condition == "ok"


async def test_the_name_may_change_from_one_get_info_to_the_next(
    autojump_clock: MockClock, handler: FakeHandler
) -> None:
    """Fault 76: the socket is the same, but the plugin is another one."""
    handler.script("register", Takes(0.0))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red(reject_notify=True))
        await trio.sleep(3.6)
        plugin.plugin = FakePlugin("Colour", "blue")
        await node.settled()
        assert node.state("a.sock") == "registered"
        assert handler.asked("red") == ["validate", "register", "deregister"]
        assert handler.asked("blue") == ["validate", "register"]
