"""What the world makes of plugins that announce themselves by a call of Register."""

from __future__ import annotations

import attrs
import pytest

from plugind.protocol.identity import Identity
from plugind.protocol.messages.discovery import CallAnswered, Called, SocketAppeared, SocketVanished
from plugind.protocol.messages.reconciler import (
    Claimed,
    ClaimReleased,
    HandlerAdded,
    PluginGone,
    PluginRegistered,
    ReconcilerMessage,
    RegistrationEnded,
    UsableChanged,
)
from plugind.protocol.plugins.info import InstancePolicy, PluginInfo
from plugind.protocol.world.worlds import AnswerCall, Effect, Send, StartRegistration, World
from plugind.tests.protocol.sockets import NOWHERE

PATH = "/dp/a.sock"
INFO = PluginInfo("DevicePlugin", "vendor.com/gpu", PATH, ("v1beta1",), 0, called=True)


def call(generation: int = 1, info: PluginInfo = INFO, inode: int = 1) -> SocketAppeared:
    called = Called(info, 0, 7, NOWHERE)
    return SocketAppeared(PATH, generation, Identity(1, inode, 0), "/dp", 0.0, call=called)


def world_with(*messages: ReconcilerMessage) -> World:
    world = World([HandlerAdded("DevicePlugin", NOWHERE, InstancePolicy.NEWEST)])
    for message in messages:
        world.handle(message, 0.0)
    return world


def take(world: World, message: ReconcilerMessage) -> list[Effect]:
    return world.handle(message, 0.0)


REGISTERED = (call(), Claimed(PATH, 1, INFO), PluginRegistered(PATH, 1))


def test_a_plugin_that_calls_again_with_the_same_socket_is_answered_at_once_and_nothing_else_happens() -> None:
    """Consumers B.3, consequence 4: a plugin that registered just before it sees kubelet.sock appear does so again."""
    world = world_with(*REGISTERED)
    again = call(2)
    assert again.call is not None
    assert take(world, again) == [AnswerCall(NOWHERE, CallAnswered(generation=1))]
    assert world.actual() == {PATH: 1}


@pytest.mark.parametrize(
    ("again", "before"),
    [
        (call(2, inode=2), REGISTERED),
        (call(2, attrs.evolve(INFO, name="vendor.com/nic")), REGISTERED),
        (call(2, attrs.evolve(INFO, uid=1)), REGISTERED),
        (call(2), REGISTERED[:2]),
        (call(2), (*REGISTERED, ClaimReleased(PATH, 1))),
        (call(2), (*REGISTERED, UsableChanged(PATH, 1, usable=False))),
    ],
    ids=["another socket", "another resource", "another user", "not registered yet", "deregistered", "list lost"],
)
def test_any_other_call_at_the_path_supersedes_the_generation_before(
    again: SocketAppeared, before: tuple[ReconcilerMessage, ...]
) -> None:
    assert take(world_with(*before), again) == [Send(PATH, again)]


def test_the_successor_of_a_crashed_registration_knows_that_the_call_was_answered() -> None:
    """Fault 85."""
    world = world_with(*REGISTERED)
    (start,) = [
        effect
        for effect in take(world, RegistrationEnded(PATH, crashed=True, error="Oops"))
        if isinstance(effect, StartRegistration)
    ]
    assert start.appeared.call is not None
    assert (start.appeared.call.reply, start.appeared.call.info.answered) == (None, True)


def test_a_plugin_that_is_gone_is_deregistered_if_it_is_that_very_generation() -> None:
    world = world_with(*REGISTERED)
    assert take(world, PluginGone(PATH, 7, "late")) == []
    assert take(world, PluginGone(PATH, 1, "taken")) == [Send(PATH, SocketVanished(PATH, 1, "taken"))]
    assert world.desired() == {}
    assert world.actual() == {}
