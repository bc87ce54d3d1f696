"""The effects: what ``plugind.protocol.world`` decides and the reconciler carries out.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from . import messages as m
from .crashes import Crash
from .plugins import PluginInfo
from .values import value


@value
class PendingDeregistration:
    """The deregistration that a registration actor which crashed left to its successor."""

    info: PluginInfo
    generation: int
    handler: m.HandlerPort
    #: Whether the plugin was registered; otherwise the crash came on the way there.
    registered: bool = False


class RegistrationCrashedError(Exception):
    """A registration actor crashed, for the error that is the cause, and leaves a deregistration to its successor."""

    def __init__(self, pending: PendingDeregistration) -> None:
        super().__init__(f"{pending.info.type} {pending.info.name!r} is still to be deregistered")
        self.pending = pending


@value
class StartRegistration:
    """Start a registration actor for this socket.

    It first does the pending deregistration, if there is one. After a crash it then waits, or parks (fault 85).
    """

    appeared: m.SocketAppeared
    to_deregister: PendingDeregistration | None = None
    #: How its predecessor ended, if that crashed.
    crash: Crash | None = None


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
class Look:
    """Send ``message`` to the watcher of ``root``."""

    root: str
    message: m.LookNow


@value
class Answer:
    """Send ``message`` to the caller that asked for it."""

    reply: m.Address[m.RetryAnswered]
    message: m.RetryAnswered


@value
class AnswerCall:
    """Answer a call of Register."""

    reply: m.Address[m.CallAnswered]
    message: m.CallAnswered


@value
class HandlerRetired:
    """The removed handler of ``type`` has no plugin left: its actor may end."""

    type: str
    handler: m.HandlerPort


@value
class RootLeft:
    """No registration actor is left of a root that was removed: another node may have it."""

    root: str


@value
class Stopped:
    """A stop was asked for, and the last registration actor has ended."""


#: The effects that never wait.
Immediate = StartRegistration | Send | Look | Answer | AnswerCall | HandlerRetired | RootLeft | Stopped
Effect = Immediate | Show
