"""A socket that vanishes or is replaced in each state: Deregister is called if and only if Register was."""

from __future__ import annotations

import math

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.handlers import Ask
from plugind.protocol.messages.discovery import SocketAppeared
from plugind.protocol.plugins.info import Plugin
from plugind.testing import (
    DEFAULT_CONFIG,
    Accepting,
    Fails,
    FakeHandler,
    FakePlugin,
    Hangs,
    PluggedIn,
    SimulatedNode,
    Takes,
)
from plugind.tests.actors.registration.timelines import Line, at, red, registered_at, shown, steps_at

#: The time at which something happens to the plugin.
MOMENT = 0.6


@attrs.define
class Scene:
    """A plugin that is in ``state`` at :data:`MOMENT`, and the history that led to it."""

    state: str
    plugin: FakePlugin
    handler: FakeHandler
    before: list[Line]
    asks: list[Ask]
    listening: bool = True
    accepting: Accepting = Accepting.SERVES
    #: The rest of the timeline if the socket is replaced.
    after_replacement: list[Line] = attrs.field(factory=lambda: registered_at(MOMENT))

    @property
    def register_asked(self) -> bool:
        return "register" in self.asks


def scenes() -> list[Scene]:
    none: list[Ask] = []
    return [
        Scene("dialing", red(), FakeHandler(), at(0.2, "dialing"), none, accepting=Accepting.BACKLOG_FULL),
        Scene("asking-info", red(hang="get-info"), FakeHandler(), at(0.2, "asking-info"), none),
        Scene("validating", red(), FakeHandler().always("validate", Takes(3.0)), at(0.2, "validating"), ["validate"]),
        Scene(
            "registering",
            red(),
            FakeHandler().always("register", Takes(3.0)),
            at(0.2, "registering"),
            ["validate", "register"],
        ),
        Scene("notifying", red(hang="notify"), FakeHandler(), at(0.2, "notifying"), ["validate", "register"]),
        Scene(
            "notifying",
            red(hang="notify"),
            FakeHandler().always("validate", Fails("no")),
            at(0.2, "notifying"),
            ["validate"],
        ),
        Scene(
            "notifying",
            red(hang="notify"),
            FakeHandler().always("register", Fails("no")),
            at(0.2, "notifying"),
            ["validate", "register"],
        ),
        Scene(
            "waiting",
            red(delay=0.4, get_info_fails=math.inf),
            FakeHandler(),
            [(0.2, "asking-info"), (0.4, "waiting")],
            none,
        ),
        Scene(
            "waiting",
            red(notify_fails=math.inf),
            FakeHandler(),
            [*at(0.0, "dialing", "notifying", "waiting"), *at(0.5, "dialing", "notifying", "waiting")],
            ["validate", "register"],
        ),
        Scene("registered", red(), FakeHandler(), registered_at(0.0), ["validate", "register"]),
    ]


def plug(node: SimulatedNode, scene: Scene) -> PluggedIn:
    plugin = node.plug("a.sock", scene.plugin, listening=False)
    plugin.accepting = scene.accepting
    plugin.listen()
    return plugin


@pytest.mark.parametrize("scene", scenes(), ids=lambda scene: f"{scene.state}-{len(scene.before)}")
async def test_a_socket_that_vanishes_is_deregistered_if_register_was_called(
    autojump_clock: MockClock, scene: Scene
) -> None:
    """Behaviour 36: exactly once for each successful or attempted Register; faults 34, 38 and 82."""
    async with SimulatedNode(handlers={"Colour": scene.handler}) as node:
        plugin = plug(node, scene)
        await trio.sleep(MOMENT - 0.001)
        assert node.timeline("a.sock") == scene.before
        assert scene.handler.asked() == scene.asks
        await trio.sleep_until(MOMENT)
        plugin.unlink()
        await node.settled()
        after = at(MOMENT, "leaving") if scene.register_asked else []
        assert node.timeline("a.sock") == [*scene.before, *after, (MOMENT, "gone")]
        assert scene.handler.asked() == scene.asks + (["deregister"] if scene.register_asked else [])
        assert (node.status("a.sock"), node.history("a.sock")[-1].next_try) == (None, None)
        await trio.sleep(1000.0)
        assert scene.handler.asked().count("deregister") == scene.register_asked
        assert plugin.connections == 0


@pytest.mark.parametrize("scene", scenes(), ids=lambda scene: f"{scene.state}-{len(scene.before)}")
async def test_a_socket_that_is_replaced_is_abandoned_and_the_new_one_registered(
    autojump_clock: MockClock, scene: Scene
) -> None:
    """Behaviours 19, 20 and 24, fault 10; reconciler Test_Run_Positive_ReRegister: unregister before register.

    Actual state Test_ASW_PluginExistsWithCorrectUUID_Negative_WrongUUID, desired state
    Test_DSW_AddOrUpdatePlugin_Positive_ExistingPlugin: the new appearance is not the old one.
    """
    # No life counts as short: test_crash_loops is about those.
    config = attrs.evolve(DEFAULT_CONFIG, stable_after=0.0)
    async with SimulatedNode(config, handlers={"Colour": scene.handler}) as node:
        plugin = plug(node, scene)
        await trio.sleep_until(MOMENT)
        before = len(node.timeline("a.sock"))
        scene.handler.calm()
        plugin.plugin, plugin.accepting = red(), Accepting.SERVES
        # The old process keeps running without a path, so its end cannot be what ends the attempt.
        node.directory.replace(plugin.path)
        other = PluggedIn(plugin.path, red(), node.directory, node.network, node._start, plugin._credentials)
        other.listen()
        await node.settled()
        after = at(MOMENT, "leaving") if scene.register_asked else []
        assert node.timeline("a.sock")[before:] == [*after, *scene.after_replacement]
        asks: list[Ask] = ["deregister"] if scene.register_asked else []
        assert scene.handler.asked() == [*scene.asks, *asks, "validate", "register"]
        assert [call.method for call in other.calls] == ["GetInfo", "NotifyRegistrationStatus"]


async def test_a_socket_that_vanishes_during_a_rollback_is_deregistered_once(autojump_clock: MockClock) -> None:
    """Behaviour 36: a Deregister in progress is not called again."""
    handler = FakeHandler().script("register", Fails("no room")).script("deregister", Takes(3.0))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        await trio.sleep(1.0)
        assert node.state("a.sock") == "leaving"
        plugin.unlink()
        await node.settled()
        assert node.timeline("a.sock")[-2:] == [(0.0, "leaving"), (3.0, "gone")]
        assert handler.asked() == ["validate", "register", "deregister"]


async def test_a_socket_that_returns_while_the_old_one_is_deregistered_waits_for_the_deregistration(
    autojump_clock: MockClock,
) -> None:
    """Behaviour 20: there is one operation at a time per path.

    Executor TestOperationExecutor_RegisterPlugin_SerialRegisterPlugin and
    TestOperationExecutor_UnregisterPlugin_SerialUnregisterPlugin; goroutinemap
    Test_NewGoRoutineMap_Negative_SecondOpBeforeFirstCompletes and
    Test_NewGoRoutineMap_Positive_SecondOpAfterFirstCompletes.
    """
    handler = FakeHandler().script("deregister", Takes(3.0))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        plugin.stop()
        await trio.sleep(1.0)
        plugin.restart()
        await node.settled()
        assert node.timeline("a.sock")[1:] == [(0.0, "leaving"), *registered_at(3.0)]
        assert handler.most_at_once == 1


async def test_a_registration_whose_deregister_fails_or_hangs_still_ends(autojump_clock: MockClock) -> None:
    """Fault 84, goroutinemap Test_NewGoRoutineMap_Positive_SecondOpAfterFirstPanics: one Deregister is enough."""
    handler = FakeHandler().script("deregister", Fails("broken"), Hangs())
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        plugin.restart()
        await node.settled()
        # The life before was short (fault 49), but the second one's delay is over when its Deregister ends.
        assert node.timeline("a.sock")[1:] == [*at(0.0, "leaving", "waiting"), *steps_at(0.5)]
        plugin.restart()
        await node.settled()
        assert node.timeline("a.sock")[9:] == [(0.5, "leaving"), (60.5, "waiting"), *steps_at(60.5)]


async def test_an_actor_that_crashes_withdraws_its_validate_and_closes_its_connection(
    autojump_clock: MockClock,
) -> None:
    """Faults 82 and 85: a Validate that hangs would block the name until its deadline. Nothing is to be undone."""
    handler = FakeHandler().script("validate", Hangs())
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        await trio.sleep(MOMENT)
        assert node.state("a.sock") == "validating"
        assert plugin.connections == 1
        assert node.crash("registration", "a.sock")
        await trio.sleep(10.0)
        assert node.state("a.sock") == "registered"
        assert handler.asked() == ["validate", "validate", "register"]
        assert (plugin.accepted, plugin.connections) == (2, 0)


async def test_a_replaced_plugin_is_shown_and_deregistered_with_its_own_facts(autojump_clock: MockClock) -> None:
    """Facts about the new socket are not used before the old plugin is deregistered."""
    handler = Recording()
    async with SimulatedNode(handlers={"Colour": handler.script("deregister", Takes(3.0))}) as node:
        path = node.plug("a.sock", red()).path
        await node.settled()
        before = shown(node)
        there = node.directory.look(path)
        assert there is not None
        new = SocketAppeared(path, 99, there.identity, "/elsewhere", node.now, deprecated=True)
        node.supervisor.internals.reconciler.address.send_nowait(new)
        await trio.sleep(1.0)
        (leaving,) = (await node.snapshot()).plugins
        assert (leaving.state, leaving.reason) == ("leaving", "a newer socket is in its place")
        for fact in ("generation", "root", "type", "name", "endpoint", "versions", "warnings", "uid", "pid"):
            assert getattr(leaving, fact) == getattr(before, fact), fact
        await node.settled()
        after = shown(node)
        assert (after.state, after.generation, after.root, len(after.warnings)) == ("registered", 99, "/elsewhere", 1)
        deregistered = [(plugin.generation, plugin.found_in_deprecated_dir) for plugin in handler.deregistered]
        assert deregistered == [(before.generation, False)]


class Recording(FakeHandler):
    """A handler that records the plugins that it deregisters."""

    def __init__(self) -> None:
        super().__init__()
        self.deregistered: list[Plugin] = []

    async def deregister(self, plugin: Plugin) -> None:
        self.deregistered.append(plugin)
        await super().deregister(plugin)
