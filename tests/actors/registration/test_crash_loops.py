"""Plugins that crash in a loop, and those that are replaced as planned (fault 49, behaviour 24)."""

from __future__ import annotations

import itertools

import pytest
import trio
from trio.testing import MockClock

from plugind import PluginError
from plugind.protocol.plugins.status import StateName
from plugind.testing import Fails, FakeHandler, FakePlugin, PluggedIn, SimulatedNode
from plugind.tests.actors.registration.timelines import red, shown


def registrations(node: SimulatedNode) -> list[float]:
    return [entry.time for entry in node.history("a.sock") if entry.state is StateName.REGISTERED]


async def restart_when_told(node: SimulatedNode, plugin: PluggedIn, times: int, *, pause: float = 0.0) -> None:
    """Let the plugin die as soon as it is told, and start again after a pause, as its supervisor does."""
    for _ in range(times):
        before = len(plugin.calls)
        # The calls of a scripted plugin are a list, and tell nobody.
        while not any(call.registered is not None for call in plugin.calls[before:]):  # noqa: ASYNC110
            await trio.sleep(0.005)
        plugin.crash()
        await trio.sleep(pause)
        plugin.restart()


async def test_a_plugin_that_dies_when_it_is_told_is_registered_with_doubling_delays(autojump_clock: MockClock) -> None:
    """Fault 49: 292 Registers in 8 s, once; now each new socket waits, whatever its generation."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        await restart_when_told(node, plugin, 7)
        times = registrations(node)
        assert [round(after - before, 1) for before, after in itertools.pairwise(times)] == [
            *(0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
        ]
        await trio.sleep(24.0)
        waiting = shown(node)
        assert waiting.reason == "crash loop: 7 short lives"
        assert waiting.next_try is not None
        assert round(waiting.next_try - node.now, 1) == 8.0
        # A change of its attributes brings nothing forward, and neither does a retry of another plugin.
        node.directory.chmod(plugin.path)
        await node.supervisor.retry("green")
        await trio.sleep(1.0)
        assert node.state("a.sock") == "waiting"
        # A retry clears the record.
        await node.supervisor.retry(plugin.path)
        await trio.sleep(0.1)
        assert node.state("a.sock") == "registered"
        plugin.restart()
        await trio.sleep(0.1)
        status = shown(node)
        assert status.reason == "crash loop: 1 short life"


async def test_a_plugin_that_exits_as_soon_as_it_is_refused_is_shown_as_refused(autojump_clock: MockClock) -> None:
    """The removal of its socket ends the first try, which is silent."""
    handler = FakeHandler().always("validate", Fails(PluginError("not today")))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", FakePlugin("Colour", "red", hang="notify"))
        await trio.sleep(0.05)
        plugin.unlink()
        await trio.sleep(0.01)
        assert [(entry.time, entry.state.value, entry.reason) for entry in node.history("a.sock")] == [
            (0.05, "notifying", "RegisterPlugin error -- plugin validation failed with err: not today"),
            (0.05, "gone", "the socket was removed"),
        ]


@pytest.mark.parametrize("removed", [False, True], ids=["replaced", "removed and made again"])
async def test_a_plugin_that_waits_in_a_crash_loop_is_known_by_its_last_name(
    removed: bool, autojump_clock: MockClock
) -> None:
    """Fault 49: ``retry NAME`` did not find it. Of the life before, nothing else is shown as if it were this one's."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", red())
        await restart_when_told(node, plugin, 5)
        if removed:
            plugin.stop()
            await trio.sleep(0.1)
            plugin = node.plug("a.sock", red())
        await trio.sleep(0.1)
        waiting = shown(node)
        assert (waiting.reason, waiting.type, waiting.name) == ("crash loop: 5 short lives", "Colour", "red")
        assert (waiting.last_known, waiting.versions, waiting.endpoint) == (True, None, None)
        plugin.plugin = FakePlugin("Colour", "blue", hang="get-info")
        (answer,) = await node.supervisor.retry("red")
        assert (answer.socket, answer.tried) == (plugin.path, True)
        await trio.sleep(0.1)
        asking = shown(node)
        assert (asking.state, asking.name, asking.last_known) == (StateName.ASKING_INFO, "red", True)
        plugin.plugin = FakePlugin("Colour", "blue")
        await trio.sleep(3.0)
        registered = shown(node)
        assert (registered.state, registered.name, registered.last_known) == (StateName.REGISTERED, "blue", False)


async def test_a_crash_of_the_reconciler_forgets_no_crash_loop(autojump_clock: MockClock) -> None:
    """Faults 49 and 85: the record outlives the reconciler, and its own restart ends no life."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", red())
        await restart_when_told(node, plugin, 3)
        await trio.sleep(0.01)
        assert node.crash("reconciler")
        node.plug("b.sock", FakePlugin("Colour", "blue"))
        await trio.sleep(0.1)
        status = shown(node)
        assert (status.state, status.reason) == (StateName.WAITING, "crash loop: 3 short lives")


def dials(node: SimulatedNode) -> list[float]:
    return [round(time, 1) for time, path in node.network.dials if path == node.path("a.sock")]


async def test_a_plugin_that_replaces_its_socket_before_it_is_told_anything_is_dialed_with_doubling_delays(
    autojump_clock: MockClock,
) -> None:
    """Fault 49: 128 sockets that were rebound all the time brought up to 730 dials a second."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        fake = FakePlugin("Colour", "red", hang="get-info")
        plugin = node.plug("a.sock", fake)
        for _ in range(92):
            await trio.sleep(0.33)
            plugin.restart()
        # Each of these is 0.5 s, 1 s, 2 s and so on after the end of the life before.
        assert dials(node) == [0.0, 0.8, 2.0, 4.3, 8.6, 16.9]
        fake.hang = None
        plugin.restart()
        await trio.sleep(2.0)
        status = shown(node)
        assert (status.state, status.reason) == (StateName.WAITING, "crash loop: 6 short lives")
        await node.supervisor.retry(plugin.path)
        await trio.sleep(0.1)
        assert node.state("a.sock") == "registered"


async def test_a_plugin_that_fails_once_is_tried_again_after_the_first_step(autojump_clock: MockClock) -> None:
    """Behaviour 24: and once it has been registered for ten seconds, its next socket is dialed at once."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        fake = FakePlugin("Colour", "red", hang="get-info")
        plugin = node.plug("a.sock", fake)
        await trio.sleep(0.2)
        fake.hang = None
        plugin.restart()
        await trio.sleep(12.0)
        plugin.restart()
        await node.settled()
        assert dials(node) == [0.0, 0.7, 12.2]
