"""What the world counts as a life, and what it tells the next socket at a path (fault 49)."""

from __future__ import annotations

import pytest

from plugind.protocol.backoff import Backoff
from plugind.protocol.messages.discovery import SocketAppeared
from plugind.protocol.messages.reconciler import (
    Claimed,
    HandlerAdded,
    ListenerChanged,
    PluginRefused,
    PluginRegistered,
    ReconcilerMessage,
    SocketDialed,
)
from plugind.protocol.plugins.info import InstancePolicy, PluginInfo
from plugind.protocol.registration.lives import Lives
from plugind.protocol.world.effects import Effect, Send, StartRegistration
from plugind.protocol.world.worlds import World
from plugind.tests.protocol.sockets import Nowhere, appeared, vanished

A = "/reg/a.sock"
INFO = PluginInfo("T", "x", A, ("1.0.0",))
SHOWN = PluginInfo("T", "x", "", ())
NOW = 100.0


def world() -> World:
    lives = Lives(Backoff(), stable_after=10.0)
    made = World((HandlerAdded("T", Nowhere(), InstancePolicy.ALL),), lives=lives)
    made.handle(appeared(1, A), NOW)
    return made


def dialed(generation: int = 1, time: float = NOW) -> SocketDialed:
    return SocketDialed(A, generation, time)


def delayed(effects: list[Effect]) -> tuple[float | None, int, PluginInfo | None]:
    """Return until when the socket that has just appeared waits, after how many short lives, and of which plugin."""
    sent = [effect.message for effect in effects if isinstance(effect, Send)]
    sent += [effect.appeared for effect in effects if isinstance(effect, StartRegistration)]
    (message,) = [message for message in sent if isinstance(message, SocketAppeared)]
    return message.not_before, message.short_lives, message.last_known


def test_a_life_begins_with_the_dial_that_reaches_the_socket() -> None:
    """Fault 49: no word to the plugin is needed."""
    node = world()
    node.handle(dialed(), NOW)
    assert delayed(node.handle(appeared(2, A), NOW + 9.0)) == (NOW + 9.5, 1, None)


def test_a_socket_that_was_not_dialed_has_no_life() -> None:
    node = world()
    assert delayed(node.handle(appeared(2, A), NOW + 1.0)) == (None, 0, None)


def test_a_life_that_lasted_since_the_first_dial_is_no_short_one() -> None:
    """Behaviour 24: later dials do not begin it anew, and it ends the row."""
    node = world()
    node.handle(dialed(), NOW)
    node.handle(appeared(2, A), NOW)
    node.handle(dialed(2), NOW)
    node.handle(dialed(2, NOW + 9.0), NOW + 9.0)
    assert delayed(node.handle(appeared(3, A), NOW + 10.0)) == (None, 0, None)
    node.handle(dialed(3, NOW + 10.0), NOW + 10.0)
    assert delayed(node.handle(appeared(4, A), NOW + 11.0)) == (NOW + 11.5, 1, None)


def test_what_the_plugin_is_told_counts_for_more_than_the_dial() -> None:
    """Fault 49: a plugin that is registered after a minute of tries, and then dies at once, had a short life."""
    node = world()
    for message in (dialed(), Claimed(A, 1, INFO)):
        node.handle(message, NOW)
    node.handle(PluginRegistered(A, 1), NOW + 60.0)
    assert delayed(node.handle(appeared(2, A), NOW + 61.0)) == (NOW + 61.5, 1, SHOWN)


@pytest.mark.parametrize("over", [appeared(2, A), vanished(1, A)], ids=["replaced", "removed"])
def test_a_dial_that_is_reported_late_counts_for_the_socket_after_the_next(over: ReconcilerMessage) -> None:
    """Fault 49: the registration reports a dial that was under way once it has given it up."""
    node = world()
    node.handle(over, NOW + 1.0)
    node.handle(dialed(), NOW + 1.0)
    assert delayed(node.handle(appeared(3, A), NOW + 1.2)) == (NOW + 1.5, 1, None)


def test_a_socket_on_which_nobody_listens_had_its_life_until_that_was_seen() -> None:
    """Fault 49: a file that a plugin has left behind does not delay its next socket a minute later."""
    node = world()
    node.handle(dialed(), NOW)
    node.handle(ListenerChanged(A, 1, listening=False), NOW + 1.0)
    assert delayed(node.handle(appeared(2, A), NOW + 60.0)) == (None, 0, None)


def test_a_dial_that_reaches_a_silent_socket_shows_that_its_life_goes_on() -> None:
    """Fault 49: a dial may come before the look that finds that somebody listens again (seed 2700487)."""
    node = world()
    node.handle(ListenerChanged(A, 1, listening=False), NOW + 1.0)
    node.handle(dialed(time=NOW + 9.0), NOW + 9.0)
    assert delayed(node.handle(appeared(2, A), NOW + 9.25)) == (NOW + 9.75, 1, None)


def test_the_next_sockets_wait_under_the_name_that_was_given_last() -> None:
    """Fault 49: also if the lives since then were too short to say a name; and nothing but type and name is kept."""
    node = world()
    for message in (dialed(), PluginRefused(A, 1, INFO)):
        node.handle(message, NOW)
    assert delayed(node.handle(appeared(2, A), NOW)) == (NOW + 0.5, 1, SHOWN)
    node.handle(dialed(2), NOW + 0.5)
    assert delayed(node.handle(appeared(3, A), NOW + 0.5)) == (NOW + 1.5, 2, SHOWN)
