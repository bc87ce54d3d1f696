"""What the reconciler is to do, as ``plugind.protocol.world`` decides it."""

from __future__ import annotations

from . import messages as m
from .plugins import PluginInfo
from .values import value


@value
class PendingDeregistration:
    """A deregistration that a crashed registration actor left behind."""

    info: PluginInfo
    generation: int
    handler: m.Address[m.HandlerMessage]


@value
class StartRegistration:
    """Start a registration actor for this socket."""

    appeared: m.SocketAppeared
    to_deregister: PendingDeregistration | None = None


@value
class Send:
    """Send ``message`` to the registration actor of ``path``."""

    path: str
    message: m.RegistrationMessage


@value
class Show:
    """Send ``message`` to the status actor."""

    message: m.StatusMessage


@value
class Answer:
    """Send ``message`` to whoever asked."""

    reply: m.Address[m.RetryAnswered]
    message: m.RetryAnswered


@value
class HandlerRetired:
    """The removed handler of ``type`` has no plugin left, and its actor may end."""

    type: str
    handler: m.Address[m.HandlerMessage]


@value
class Stopped:
    """A stop was asked, and the last registration actor ended."""


#: What is carried out without a wait.
Immediate = StartRegistration | Send | Answer | HandlerRetired | Stopped
Effect = Immediate | Show
