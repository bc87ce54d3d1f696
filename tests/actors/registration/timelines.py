"""Parts of timelines that many tests share."""

from __future__ import annotations

from typing import Any

from plugind.protocol.plugins.status import PluginStatus
from plugind.testing import Call, FakeHandler, FakePlugin, PluggedIn, SimulatedNode

Line = tuple[float, str]

#: The states of a registration, all of which are shown of each try but the first of a generation.
STEPS = ("dialing", "asking-info", "validating", "registering", "notifying", "registered")


def red(name: str = "red", **faults: Any) -> FakePlugin:
    return FakePlugin("Colour", name, **faults)


def shown(node: SimulatedNode, socket: str = "a.sock") -> PluginStatus:
    """Return what is shown of a plugin that is known."""
    status = node.status(socket)
    assert status is not None
    return status


def at(time: float, *states: str) -> list[Line]:
    """Return these states, all entered at ``time``."""
    return [(time, state) for state in states]


def registered_at(time: float) -> list[Line]:
    """Return what is shown of a first try of a generation that takes no time: its end."""
    return at(time, "registered")


def steps_at(time: float) -> list[Line]:
    """Return what is shown of a later try that takes no time: each of its steps."""
    return at(time, *STEPS)


def notified_ok(time: float) -> Call:
    return Call(time, "NotifyRegistrationStatus", registered=True)


def notified_error(time: float, error: str) -> Call:
    return Call(time, "NotifyRegistrationStatus", registered=False, error=error)


def asked(time: float) -> Call:
    return Call(time, "GetInfo")


def asks(handler: FakeHandler) -> list[tuple[float, str]]:
    return [(call.time, call.ask) for call in handler.calls]


def notified(plugin: PluggedIn) -> list[tuple[float, bool | None]]:
    return [(call.time, call.registered) for call in plugin.calls if call.method == "NotifyRegistrationStatus"]


def resting(node: SimulatedNode, socket: str = "a.sock") -> list[tuple[float, str]]:
    """The states in which a registration rests, and its end."""
    states = ("waiting", "stale", "parked", "registered", "leaving", "gone")
    return [(time, state) for time, state in node.timeline(socket) if state in states]
