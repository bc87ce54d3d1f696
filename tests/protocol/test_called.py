"""Plugins that announce themselves by a call of Register: their lifecycle, and what the world makes of their calls."""

from __future__ import annotations

import attrs
import pytest

from plugind.protocol import lifecycle
from plugind.protocol import messages as m
from plugind.protocol import states as s
from plugind.protocol.identity import Identity
from plugind.protocol.plugins import InstancePolicy, PluginInfo
from plugind.protocol.status import Outcome
from plugind.protocol.world import AnswerCall, Effect, Send, StartRegistration, World
from plugind.tests.protocol.playbook import ADMITTED, NO_HANDLER, NOWHERE

PATH = "/dp/a.sock"
INFO = PluginInfo("DevicePlugin", "vendor.com/gpu", PATH, ("v1beta1",), 0, called=True)
AGAIN = "the plugin has to call Register again"
TO_CLAIM = (s.Dialed(), s.InfoReceived(INFO))
TO_REGISTER = (*TO_CLAIM, ADMITTED, s.HandlerAccepted())


def call(generation: int = 1, info: PluginInfo = INFO, inode: int = 1) -> m.SocketAppeared:
    called = m.Called(info, 0, 7, NOWHERE)
    return m.SocketAppeared(PATH, generation, Identity(1, inode, 0), "/dp", 0.0, call=called)


def play(*events: s.Event) -> s.Step:
    state, commands = lifecycle.start(call())
    for event in events:
        state, commands = lifecycle.step(state, event)
    return state, commands


# --- the lifecycle ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "text", "outcome"),
    [
        ((*TO_CLAIM, m.ClaimRefused(1, "taken")), "taken", Outcome.REFUSED),
        ((*TO_CLAIM, ADMITTED, s.Failed("no", outcome=Outcome.REFUSED)), "no", Outcome.REFUSED),
        ((*TO_CLAIM, ADMITTED, s.Failed("slow", outcome=Outcome.TIMED_OUT)), "slow", Outcome.TIMED_OUT),
        ((*TO_REGISTER, s.Failed("failed to dial", outcome=Outcome.REFUSED)), "failed to dial", Outcome.FAILED),
        ((*TO_REGISTER, s.Failed("no answer", outcome=Outcome.TIMED_OUT)), "no answer", Outcome.TIMED_OUT),
    ],
)
def test_a_call_that_is_refused_is_told_the_plain_reason_and_parks(
    events: tuple[s.Event, ...], text: str, outcome: Outcome
) -> None:
    """The caller has to call again, so no backoff tries in its place."""
    state, commands = play(*events)
    (notify,) = [command for command in commands if isinstance(command, s.Notify)]
    assert notify.refusal == s.Refusal(text, outcome)
    state, commands = lifecycle.step(state, s.Notified())
    if isinstance(state, s.Leaving):
        state, commands = lifecycle.step(state, s.HandlerAccepted())
    assert isinstance(state, s.Parked)
    assert state.reason == f"{text}: {AGAIN}"
    assert not any(isinstance(command, s.StartTimer) for command in commands)


def test_a_plugin_whose_call_was_answered_yes_is_tried_again_by_the_backoff() -> None:
    """It does not call again, whatever happens to its registration later: a crash of the reconciler, for example."""
    answered = attrs.evolve(INFO, answered=True)
    state, _ = play(s.Dialed(), s.InfoReceived(answered), ADMITTED, s.HandlerAccepted(), s.Failed("no"))
    state, _ = lifecycle.step(state, s.Notified())
    state, commands = lifecycle.step(state, s.HandlerAccepted())
    assert isinstance(state, s.Waiting)
    assert commands[-1] == s.StartTimer(1)


def test_a_call_for_which_there_is_no_handler_parks_until_there_is_one() -> None:
    """Behaviour 29: the info is known, so that the plugin need not call again."""
    state, commands = play(*TO_CLAIM, NO_HANDLER)
    assert commands == (s.Notify("no handler for T", s.Refusal("no handler for T", Outcome.FAILED)),)
    state, _ = lifecycle.step(state, s.Notified())
    assert isinstance(state, s.Parked)
    assert state.until_type == "DevicePlugin"
    state, _ = lifecycle.step(state, m.HandlerAvailable("DevicePlugin"))
    assert isinstance(state, s.Dialing)


def test_the_next_call_at_the_path_is_a_new_generation() -> None:
    state, _ = play(*TO_CLAIM, m.ClaimRefused(1, "taken"), s.Notified())
    assert lifecycle.step(state, call(2)) == (s.Dialing(2, 1), (s.Dial(patient=True),))


def test_a_plugin_that_called_and_does_not_serve_any_more_parks_and_is_not_dialed() -> None:
    """Fault 39 with ``--deregister-not-serving``: there is nothing to dial that could find out more."""
    state, _ = play(*TO_REGISTER, s.HandlerAccepted(), s.Notified())
    state, _ = lifecycle.step(state, m.ListenerLost(PATH, 1, "nobody listens"))
    state, commands = lifecycle.step(state, s.HandlerAccepted())
    assert isinstance(state, s.Parked)
    assert (state.reason, commands) == (f"nobody listens: {AGAIN}", (s.Release(1),))


def test_a_plugin_is_deregistered_for_the_reason_for_which_it_is_gone() -> None:
    state, _ = play(*TO_REGISTER, s.HandlerAccepted(), s.Notified())
    state, _ = lifecycle.step(state, m.SocketVanished(PATH, 1, "kubelet.sock was replaced"))
    assert isinstance(state, s.Leaving)
    assert state.reason == "kubelet.sock was replaced"


# --- the world --------------------------------------------------------------------------------------------------------


def world_with(*messages: m.ReconcilerMessage) -> World:
    world = World([m.HandlerAdded("DevicePlugin", NOWHERE, InstancePolicy.NEWEST)])
    for message in messages:
        world.handle(message, 0.0)
    return world


def take(world: World, message: m.ReconcilerMessage) -> list[Effect]:
    return world.handle(message, 0.0)


REGISTERED = (call(), m.Claimed(PATH, 1, INFO, 1), m.PluginRegistered(PATH, 1))


def test_a_call_starts_a_registration_as_a_socket_does() -> None:
    assert take(world_with(), call()) == [StartRegistration(call())]


def test_a_plugin_that_calls_again_with_the_same_socket_is_answered_at_once_and_nothing_else_happens() -> None:
    """Consumers B.3, consequence 4: a plugin that registered just before it sees kubelet.sock appear does so again."""
    world = world_with(*REGISTERED)
    again = call(2)
    assert again.call is not None
    assert take(world, again) == [AnswerCall(NOWHERE, m.CallAnswered(generation=1))]
    assert world.actual() == {PATH: 1}


@pytest.mark.parametrize(
    ("again", "before"),
    [
        (call(2, inode=2), REGISTERED),
        (call(2, attrs.evolve(INFO, name="vendor.com/nic")), REGISTERED),
        (call(2, attrs.evolve(INFO, uid=1)), REGISTERED),
        (call(2), REGISTERED[:2]),
        (call(2), (*REGISTERED, m.Released(PATH, 1))),
        (call(2), (*REGISTERED, m.UsableChanged(PATH, 1, usable=False))),
    ],
    ids=["another socket", "another resource", "another user", "not registered yet", "deregistered", "list lost"],
)
def test_any_other_call_at_the_path_supersedes_the_generation_before(
    again: m.SocketAppeared, before: tuple[m.ReconcilerMessage, ...]
) -> None:
    assert take(world_with(*before), again) == [Send(PATH, again)]


def test_the_successor_of_a_crashed_registration_knows_that_the_call_was_answered() -> None:
    """Fault 85."""
    world = world_with(*REGISTERED)
    (start,) = [
        effect
        for effect in take(world, m.RegistrationEnded(PATH, crashed=True, error="Oops"))
        if isinstance(effect, StartRegistration)
    ]
    assert start.appeared.call is not None
    assert (start.appeared.call.reply, start.appeared.call.info.answered) == (None, True)


def test_a_plugin_that_is_gone_is_deregistered_if_it_is_that_very_generation() -> None:
    world = world_with(*REGISTERED)
    assert take(world, m.PluginGone(PATH, 7, "late")) == []
    assert take(world, m.PluginGone(PATH, 1, "taken")) == [Send(PATH, m.SocketVanished(PATH, 1, "taken"))]
    assert world.desired() == {}
    assert world.actual() == {}
