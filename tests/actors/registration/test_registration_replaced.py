"""A socket that is replaced between the look that found it and the dial: one conversation, with one generation."""

from __future__ import annotations

import errno

import trio
from trio.testing import MockClock

from plugind.protocol.plugins.info import InstancePolicy
from plugind.protocol.plugins.status import StateName
from plugind.protocol.registration.failures import REPLACED
from plugind.testing import Call, FakeHandler, FakePlugin, SimulatedNode
from plugind.tests.actors.registration.timelines import red

NOTIFIED = [Call(0.0, "GetInfo"), Call(0.0, "NotifyRegistrationStatus", registered=True)]


def story(node: SimulatedNode) -> list[tuple[float, str, int, int]]:
    """Time, state, generation and attempt of each change."""
    return [(entry.time, entry.state, entry.generation, entry.attempt) for entry in node.history("a.sock")]


async def test_a_socket_that_is_replaced_between_look_and_dial_is_told_once(autojump_clock: MockClock) -> None:
    """Fault 41, behaviour 9: the dial of the old generation does not reach the new listener."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        node.network.before_dial[plugin.path] = plugin.restart
        await node.settled()
        assert story(node) == [(0.0, "waiting", 1, 0), (0.0, "registered", 2, 1)]
        assert node.history("a.sock")[0].reason == REPLACED
        assert (node.state("a.sock"), plugin.calls) == ("registered", NOTIFIED)
        assert handler.asked() == ["validate", "register"]


async def test_a_dial_that_finds_another_socket_is_not_counted(autojump_clock: MockClock) -> None:
    """Fault 41: the second try finds it; the old socket comes back, and its second try is the second again."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", red(get_info_fails=1))
        hidden = node.path(".a.sock")

        def swap() -> None:
            node.directory.delay_events()
            node.directory.look_errors[plugin.path] = errno.EIO
            node.directory.rename(plugin.path, hidden)
            node.directory.bind(plugin.path)

        def swap_back() -> None:
            node.directory.unlink(plugin.path)
            node.directory.rename(hidden, plugin.path)

        await trio.sleep(0.4)
        node.network.before_dial[plugin.path] = swap
        await trio.sleep(0.4)
        swap_back()
        await node.settled()
        assert [change for change in story(node) if change[1] in ("dialing", "waiting", "registered")] == [
            (0.0, "waiting", 1, 1),
            (0.5, "dialing", 1, 2),
            (0.5, "waiting", 1, 1),
            (1.0, "dialing", 1, 2),
            (1.0, "registered", 1, 2),
        ]


async def test_a_plugin_that_replaces_its_socket_at_each_dial_is_looked_at_ten_times_a_second(
    autojump_clock: MockClock,
) -> None:
    """Fault 41: a dial asks for a look, and a look leads to a dial; together they must not spin."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", red())
        node.directory.drop_events()

        def replace() -> None:
            plugin.restart()
            node.network.before_dial[plugin.path] = replace

        node.network.before_dial[plugin.path] = replace
        await trio.sleep(5.0)
        assert 40 <= len(node.network.dials) <= 60
        del node.network.before_dial[plugin.path]
        await node.settled()
        assert plugin.calls[-1].registered


async def test_a_registered_plugin_that_is_replaced_before_it_is_notified_is_deregistered_first(
    autojump_clock: MockClock,
) -> None:
    """Fault 41, behaviours 33 and 36: the dial was only to notify; the new socket gets no result of the old one."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red(notify_fails=1))

        def arm() -> None:
            node.network.before_dial[plugin.path] = plugin.restart

        node.network.before_dial[plugin.path] = arm
        await node.settled()
        assert handler.asked() == ["validate", "register", "deregister", "validate", "register"]
        assert [call.method for call in plugin.calls] == ["GetInfo", "NotifyRegistrationStatus"] * 2
        assert [call.registered for call in plugin.calls if call.registered is not None] == [True, True]
        assert node.history("a.sock")[-1].generation == 2
        reasons = [entry.reason for entry in node.history("a.sock") if entry.state is StateName.WAITING]
        assert reasons == [REPLACED, "crash loop: 1 short life"]


async def test_a_plugin_whose_socket_was_replaced_leaves_its_turn_for_a_name_to_the_next(
    autojump_clock: MockClock,
) -> None:
    """Fault 41, behaviour 37, seed 6200147: no claim follows a dial that finds another file."""
    handler = FakeHandler(instances=InstancePolicy.REJECT)
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        first = node.plug("first.sock", red())
        await node.settled()
        second = node.plug("second.sock", red())
        await trio.sleep(0.1)
        node.plug("third.sock", red())
        await trio.sleep_until(20.0)

        def replace() -> None:
            node.directory.look_errors[second.path] = errno.EIO
            second.plugin = FakePlugin("Colour", "green")
            second.restart()

        node.network.before_dial[second.path] = replace
        first.stop()
        await trio.sleep(0.1)
        assert node.history("second.sock")[-1].reason == REPLACED
        assert node.timeline("third.sock")[-1] == (20.0, "registered")
