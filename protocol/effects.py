"""What the reconciler is to do, as ``plugind.protocol.world`` decides it."""

from __future__ import annotations

import attrs

from plugind.protocol import messages as m
from plugind.protocol.plugins import PluginInfo


@attrs.frozen
class Owed:
    """A deregistration that a crashed registration actor left behind."""

    info: PluginInfo
    generation: int
    handler: m.Address[m.HandlerMessage]


@attrs.frozen
class StartRegistration:
    """Start a registration actor for this socket."""

    appeared: m.SocketAppeared
    owed: Owed | None = None


@attrs.frozen
class Tell:
    """Send ``message`` to the registration actor of ``path``."""

    path: str
    message: m.RegistrationMessage


@attrs.frozen
class Show:
    """Send ``message`` to the status actor."""

    message: m.StatusMessage


@attrs.frozen
class Answer:
    """Send ``message`` to whoever asked."""

    reply: m.Address[m.RetryAnswered]
    message: m.RetryAnswered


@attrs.frozen
class HandlerRetired:
    """The removed handler of ``type`` has no plugin left, and its actor may end."""

    type: str
    handler: m.Address[m.HandlerMessage]


@attrs.frozen
class Finished:
    """A stop was asked, and the last registration actor ended."""


Effect = StartRegistration | Tell | Show | Answer | HandlerRetired | Finished
