"""Plugins that crash in a loop, and those that are replaced as planned (fault 49, behaviour 24)."""

from __future__ import annotations

import itertools

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind import PluginError
from plugind.protocol.plugins.status import StateName
from plugind.protocol.registration.failures import REPLACED
from plugind.testing import DEFAULT_CONFIG, Accepting, Fails, FakeHandler, FakePlugin, PluggedIn, SimulatedNode
from plugind.tests.actors.registration.timelines import at, registered_at


def red() -> FakePlugin:
    return FakePlugin("Colour", "red")


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


async def test_a_plugin_that_dies_when_it_is_told_is_registered_with_doubling_delays(
    autojump_clock: MockClock,
) -> None:
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
        waiting = node.status("a.sock")
        assert waiting is not None
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
        status = node.status("a.sock")
        assert status is not None
        assert status.reason == "crash loop: 1 short life"


async def test_a_plugin_that_is_refused_and_exits_counts_as_well(autojump_clock: MockClock) -> None:
    """Fault 49: a life that ended soon after the plugin was told no."""
    handler = FakeHandler().always("validate", Fails("not today"))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        await restart_when_told(node, plugin, 4)
        await trio.sleep(0.01)
        status = node.status("a.sock")
        assert status is not None
        assert (status.state, status.reason) == (StateName.WAITING, "crash loop: 4 short lives")


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


async def test_a_plugin_that_replaces_a_stale_socket_is_registered_at_once(autojump_clock: MockClock) -> None:
    """Fault 49: the file was left by a kill, so nobody was reached there, however often it was dialed."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        path = f"{node.root}/a.sock"
        for _ in range(3):
            node.directory.bind(path)
            await trio.sleep(5.0)
            assert node.state("a.sock") == "stale"
            node.directory.unlink(path)
            await node.settled()
        before = len(node.timeline("a.sock"))
        node.plug("a.sock", red())
        await node.settled()
        assert node.timeline("a.sock")[before:] == registered_at(15.0)


async def test_a_planned_replacement_of_a_stable_plugin_is_immediate(autojump_clock: MockClock) -> None:
    """Behaviour 24: the old one was registered for ten seconds, and its life resets the row."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", red())
        await restart_when_told(node, plugin, 2)
        await trio.sleep(1.1)
        (registered,) = registrations(node)[-1:]
        await trio.sleep_until(registered + 10.001)
        before = len(node.timeline("a.sock"))
        plugin.restart()
        await node.settled()
        now = round(registered + 10.001, 6)
        assert node.timeline("a.sock")[before:] == [(now, "leaving"), *registered_at(now)]


async def test_the_pause_of_the_plugins_own_supervisor_is_part_of_the_delay(autojump_clock: MockClock) -> None:
    """Fault 49: the delay counts from the end of the life, also if the socket file stayed: the listener was gone."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", red())
        await restart_when_told(node, plugin, 4, pause=9.0)
        await trio.sleep(0.01)
        assert node.state("a.sock") == "registered"
        assert all(entry.state is not StateName.WAITING for entry in node.history("a.sock"))


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
        waiting = node.status("a.sock")
        assert waiting is not None
        assert (waiting.reason, waiting.type, waiting.name) == ("crash loop: 5 short lives", "Colour", "red")
        assert (waiting.last_known, waiting.versions, waiting.endpoint) == (True, None, None)
        plugin.plugin = FakePlugin("Colour", "blue", hang="get-info")
        (answer,) = await node.supervisor.retry("red")
        assert (answer.socket, answer.tried) == (plugin.path, True)
        await trio.sleep(0.1)
        asking = node.status("a.sock")
        assert asking is not None
        assert (asking.state, asking.name, asking.last_known) == (StateName.ASKING_INFO, "red", True)
        plugin.plugin = FakePlugin("Colour", "blue")
        await trio.sleep(3.0)
        registered = node.status("a.sock")
        assert registered is not None
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
        status = node.status("a.sock")
        assert status is not None
        assert (status.state, status.reason) == (StateName.WAITING, "crash loop: 3 short lives")


async def test_a_socket_that_waits_for_its_next_try_ends_with_its_removal(autojump_clock: MockClock) -> None:
    """Fault 49: and what comes after it waits for the same time."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", red())
        await restart_when_told(node, plugin, 5)
        await trio.sleep(1.0)
        assert node.state("a.sock") == "waiting"
        before = node.status("a.sock")
        plugin.stop()
        await trio.sleep(1.0)
        assert node.state("a.sock") is None
        node.plug("a.sock", red())
        await trio.sleep(1.0)
        after = node.status("a.sock")
        assert before is not None
        assert after is not None
        assert (after.reason, after.next_try) == (before.reason, before.next_try)


async def test_a_stable_time_of_zero_lets_no_socket_wait(autojump_clock: MockClock) -> None:
    config = attrs.evolve(DEFAULT_CONFIG, stable_after=0.0)
    async with SimulatedNode(config, handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        plugin.restart()
        await node.settled()
        assert node.timeline("a.sock") == [*registered_at(0.0), *at(0.0, "leaving"), *registered_at(0.0)]


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
        status = node.status("a.sock")
        assert status is not None
        assert (status.state, status.reason) == (StateName.WAITING, "crash loop: 6 short lives")
        await node.supervisor.retry(plugin.path)
        await trio.sleep(0.1)
        assert node.state("a.sock") == "registered"


async def test_a_socket_that_is_replaced_at_once_after_its_dial_counts_as_well(autojump_clock: MockClock) -> None:
    """Fault 49: a life of less than a tenth of a second is reported when it has ended, so the socket after it waits."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", FakePlugin("Colour", "red", hang="get-info"))
        for _ in range(600):
            await trio.sleep(0.05)
            plugin.restart()
        assert len(dials(node)) <= 12


async def test_a_socket_that_is_replaced_while_its_dial_waits_for_it_counts_as_well(autojump_clock: MockClock) -> None:
    """Fault 49: the backlog of each socket is full; the dial that is under way is reported when it is given up."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", red())
        plugin.accepting = Accepting.BACKLOG_FULL
        plugin.restart()
        for _ in range(100):
            await trio.sleep(0.3)
            plugin.restart()
        # The next socket has appeared by then. The one after it waits.
        dialed = {entry.generation for entry in node.history("a.sock") if entry.state is StateName.DIALING}
        assert 2 <= len(dialed) <= 12


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


@pytest.mark.parametrize("was_reached", [False, True])
async def test_the_life_of_a_socket_on_which_somebody_listens_again_goes_on(
    was_reached: bool, autojump_clock: MockClock
) -> None:
    """Fault 49: its end counts, and not when nobody listened, whether or not a dial had reached it before that."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", FakePlugin("Colour", "red", hang="get-info"))
        plugin.close_listener()
        if was_reached:
            plugin.listen()
            await trio.sleep(0.2)
            plugin.close_listener()
        await trio.sleep(3.0)
        assert node.state("a.sock") == "stale"
        plugin.listen()
        await node.supervisor.retry(plugin.path)
        await trio.sleep(0.2)
        assert node.state("a.sock") == "asking-info"
        plugin.restart()
        ended = node.now
        await trio.sleep(0.3)
        waiting = node.status("a.sock")
        assert waiting is not None
        assert (waiting.state, waiting.reason) == (StateName.WAITING, "crash loop: 1 short life")
        assert waiting.next_try == pytest.approx(ended + 0.5)


async def test_a_socket_that_is_replaced_before_it_is_dialed_costs_nothing(autojump_clock: MockClock) -> None:
    """Fault 49: while another plugin has the only dial slot, a socket has no life."""
    simulated = SimulatedNode(handlers={"Colour": FakeHandler()})
    simulated.network.dial_slots = 1
    async with simulated as node:
        node.plug("b.sock", FakePlugin("Colour", "blue", hang="get-info"))
        await trio.sleep(0.01)
        plugin = node.plug("a.sock", red())
        await trio.sleep(0.01)
        plugin.restart()
        await trio.sleep(0.01)
        plugin.restart()
        assert dials(node) == []
        await trio.sleep(1.0)
        assert node.state("a.sock") == "registered"
        assert all(entry.state is not StateName.WAITING for entry in node.history("a.sock"))


async def test_a_dial_that_finds_another_file_at_the_path_begins_no_life(autojump_clock: MockClock) -> None:
    """Faults 41 and 49: the socket was replaced while it waited for the only dial slot, and nobody has seen that."""
    simulated = SimulatedNode(handlers={"Colour": FakeHandler()})
    simulated.network.dial_slots = 1
    async with simulated as node:
        node.plug("b.sock", FakePlugin("Colour", "blue", hang="get-info"))
        await trio.sleep(0.01)
        plugin = node.plug("a.sock", red())
        await trio.sleep(0.01)
        node.directory.drop_events()
        plugin.restart()
        await trio.sleep(1.0)
        assert node.state("a.sock") == "registered"
        assert [entry.reason for entry in node.history("a.sock") if entry.state is StateName.WAITING] == [REPLACED]
