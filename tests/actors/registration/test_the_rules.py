"""What a registration guarantees, each as one scenario: the calls of the plugin, those of the handler, and the rest."""

from __future__ import annotations

from os.path import basename

import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.handlers import Ask
from plugind.protocol.health.progress import Condition
from plugind.protocol.logs.lines import Level
from plugind.protocol.plugins.info import Plugin
from plugind.testing import (
    DEFAULT_CONFIG,
    Call,
    Fails,
    FakeHandler,
    FakePlugin,
    Hangs,
    SimulatedNode,
    Takes,
)
from plugind.tests.actors.handlers.calling import Lines
from plugind.tests.actors.registration.timelines import asks, notified, red, resting


def asks_of_sockets(handler: FakeHandler) -> list[tuple[float, str, str]]:
    return [
        (call.time, call.ask, basename(plugin.socket))
        for call, (_, plugin) in zip(handler.calls, handler.plugins, strict=True)
    ]


async def test_a_registration_from_its_socket_to_its_end(autojump_clock: MockClock) -> None:
    """Behaviours 26 and 36: no call to the plugin is made at its end.

    Reconciler Test_Run_Positive_RegisterThenUnregister; actual state Test_ASW_RemovePlugin_Positive, desired state
    Test_DSW_RemovePlugin_Positive: gone.
    """
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        await trio.sleep(1.0)
        plugin.unlink()
        await node.settled()
        assert plugin.calls == [Call(0.0, "GetInfo"), Call(0.0, "NotifyRegistrationStatus", registered=True)]
        assert asks(handler) == [(0.0, "validate"), (0.0, "register"), (1.0, "deregister")]
        assert resting(node) == [(0.0, "registered"), (1.0, "leaving"), (1.0, "gone")]
        assert (node.status("a.sock"), node.leftovers()) == (None, [])


async def test_a_name_is_busy_until_it_is_registered_and_until_it_is_deregistered(autojump_clock: MockClock) -> None:
    """Behaviours 20 and 21: of two plugins of a name, the second is validated once the first is registered."""
    handler = FakeHandler().script("register", Takes(1.0)).script("deregister", Takes(1.0))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        first = node.plug("a.sock", red())
        await trio.sleep(0.5)
        node.plug("b.sock", red())
        await trio.sleep(1.5)
        assert asks(handler) == [(0.0, "validate"), (0.0, "register"), (1.0, "validate"), (1.0, "register")]
        first.unlink()
        await trio.sleep(0.5)
        node.plug("c.sock", red())
        await node.settled()
        assert asks(handler)[4:] == [(2.0, "deregister"), (3.0, "validate"), (3.0, "register")]
        assert handler.most_at_once == 1


async def test_a_plugin_that_its_handler_refuses_leaves_the_name_to_the_next(autojump_clock: MockClock) -> None:
    """Behaviour 20: a try that asked for no Register releases its name at its end."""
    handler = FakeHandler().script("validate", Hangs())
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", red())
        await trio.sleep(1.0)
        node.plug("b.sock", red())
        await trio.sleep(99.0)
        assert asks_of_sockets(handler) == [
            (0.0, "validate", "a.sock"),
            *((60.0, ask, "b.sock") for ask in ("validate", "register")),
            *((60.5, ask, "a.sock") for ask in ("validate", "register")),
        ]
        assert resting(node) == [(60.0, "waiting"), (60.5, "registered")]
        assert resting(node, "b.sock") == [(60.0, "registered")]


async def test_an_instance_that_leaves_while_another_registers_is_deregistered_after_that(
    autojump_clock: MockClock,
) -> None:
    """Behaviour 21: neither its crash nor its wait ends the link, but its Deregister does."""
    handler = FakeHandler(follows=True)
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        first = node.plug("a.sock", red())
        await trio.sleep(1.0)
        handler.script("register", Takes(2.0))
        second = node.plug("b.sock", red())
        await trio.sleep(1.0)
        node.crash("registration", "a.sock")
        await trio.sleep(0.9)
        assert list(handler.links) == [first.path]
        await trio.sleep(0.5)
        assert list(handler.links) == [second.path]
        assert asks(handler) == [
            *((0.0, ask) for ask in ("validate", "register", "follow")),
            *((1.0, ask) for ask in ("validate", "register")),
            *((3.0, ask) for ask in ("follow", "deregister")),
        ]
        assert resting(node) == [(0.0, "registered"), (2.0, "leaving"), (3.0, "waiting")]


@pytest.mark.parametrize("ask", ["validate", "register"])
async def test_a_handler_that_does_not_end_in_time_fails_its_plugin_alone(autojump_clock: MockClock, ask: Ask) -> None:
    """Behaviour 22, fault 82."""
    handler = FakeHandler().script(ask, Hangs(), name="red")
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        node.plug("b.sock", FakePlugin("Colour", "green"))
        seconds = DEFAULT_CONFIG.timeouts.of_handler("Colour")
        await trio.sleep(2 * seconds)
        assert notified(plugin) == [(seconds, False), (seconds + 0.5, True)]
        undone = ["deregister"] if ask == "register" else []
        before = ["validate"] if ask == "validate" else ["validate", "register"]
        assert handler.asked("red") == [*before, *undone, "validate", "register"]
        assert resting(node, "b.sock") == [(0.0, "registered")]


class Shielding(FakeHandler):
    """A handler that keeps its cancellation to itself."""

    async def register(self, plugin: Plugin) -> None:
        with trio.CancelScope(shield=True):
            await super().register(plugin)

    async def deregister(self, plugin: Plugin) -> None:
        with trio.CancelScope(shield=True):
            await super().deregister(plugin)


GOES_ON = (
    "register of red was cancelled 5 s ago and goes on, since the handler keeps the cancellation to itself, and other"
    " calls for that name wait"
)


async def test_a_handler_that_outlasts_its_cancellation_is_shown_and_its_plugin_is_told_late(
    autojump_clock: MockClock,
) -> None:
    """Fault 82: it keeps its registration and its name, and nothing else."""
    handler, log = Shielding().script("register", Takes(100.0), name="red"), Lines()
    async with SimulatedNode(handlers={"Colour": handler}, log=log) as node:
        plugin = node.plug("a.sock", red())
        node.plug("b.sock", FakePlugin("Colour", "green"))
        health = []
        for time in (64.9, 65.0, 99.9, 101.0):
            await trio.sleep_until(time)
            health.append((time, node.health()["handler Colour"].condition.value))
        assert health == [(64.9, "ok"), (65.0, "degraded"), (99.9, "degraded"), (101.0, "ok")]
        assert log.with_text("actor is held up") == [(Level.WARNING, {"actor": "handler Colour", "reason": GOES_ON})]
        assert [fields for _, fields in log.with_text("actor goes on")] == [{"actor": "handler Colour"}]
        assert notified(plugin) == [(100.0, True)]
        assert resting(node) == [(100.0, "registered")]
        assert resting(node, "b.sock") == [(0.0, "registered")]


async def test_a_stop_names_the_handler_that_keeps_it_from_its_end(autojump_clock: MockClock) -> None:
    """Fault 87: twice the grace after the signal the process is ended, with these words."""
    handler = Shielding().script("register", Takes(100.0))
    async with SimulatedNode(handlers={"Colour": handler}) as node, trio.open_nursery() as nursery:
        node.plug("a.sock", red())
        await trio.sleep(70.0)
        nursery.start_soon(node.stop)
        await trio.sleep(2 * node.config.timeouts.stop_grace)
        unfinished = node.supervisor.internals.unfinished()
        assert unfinished.actors == ("registrations",)
        assert unfinished.calls == ("register of red (/plugins/a.sock) in the handler for Colour",)
    assert (trio.current_time(), handler.asked()) == (100.0, ["validate", "register"])


async def test_a_register_that_fails_after_its_handler_was_removed_leaves_its_plugin_untold(
    autojump_clock: MockClock,
) -> None:
    """Behaviours 29 and 36: only the next try tells the plugin anything, which is that it has no handler."""

    class Late(FakeHandler):
        async def register(self, plugin: Plugin) -> None:
            await trio.sleep(3.0)
            await super().register(plugin)

    handler = Late().script("register", Fails("full"))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        await trio.sleep(1.0)
        await node.supervisor.remove_handler("Colour")
        await node.settled()
        assert asks(handler) == [(0.0, "validate"), (3.0, "register"), (3.0, "deregister")]
        refusals = [(call.time, call.error) for call in plugin.calls if call.method == "NotifyRegistrationStatus"]
        assert [(time, "no handler registered" in error) for time, error in refusals] == [(3.0, True)]
        assert resting(node) == [(3.0, "leaving"), (3.0, "parked")]


@pytest.mark.parametrize("removed_at", [1.5, 20.0])
async def test_a_removed_handler_stays_until_its_last_deregister_has_ended_though_the_reconciler_crashed(
    autojump_clock: MockClock, removed_at: float
) -> None:
    """Behaviour 29, faults 82 and 85: removed before the reconciler crashes at 2.0, or from the next one after it."""
    handler, ended = Shielding().script("deregister", Takes(98.0)), list[float]()
    async with SimulatedNode(handlers={"Colour": handler}) as node, trio.open_nursery() as nursery:
        node.plug("a.sock", red())

        async def remove() -> None:
            await trio.sleep_until(removed_at)
            await node.supervisor.remove_handler("Colour")
            ended.append(node.now)

        nursery.start_soon(remove)
        await trio.sleep(2.0)
        node.crash("reconciler")
        await trio.sleep_until(90.0)
        assert node.health()["handler Colour"].condition is Condition.DEGRADED
        (call,) = node.supervisor.internals.unfinished().calls
        assert call == "deregister of red (/plugins/a.sock) in the handler for Colour"
        await trio.sleep_until(200.0)
        assert "handler Colour" not in node.health()
        left = min(removed_at, 2.0)
        assert asks(handler) == [(0.0, "validate"), (0.0, "register"), (left, "deregister")]
        assert ended == [left + 98.0]
        assert resting(node)[-2:] == [(ended[0], "gone"), (ended[0], "parked")]
