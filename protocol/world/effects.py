"""The effects: what ``plugind.protocol.world.worlds`` decides and the reconciler carries out."""

from __future__ import annotations

from ..messages.addresses import Address
from ..messages.discovery import CallAnswered, LookNow, SocketAppeared
from ..messages.reconciler import HandlerPort, RetryAnswered
from ..messages.registration import RegistrationMessage
from ..messages.status import StatusMessage
from ..plugins.info import PluginInfo
from ..registration.crashes import Crash
from ..values import value


@value
class PendingDeregistration:
    """The deregistration that a registration actor which crashed left to its successor."""

    info: PluginInfo
    generation: int
    handler: HandlerPort
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

    appeared: SocketAppeared
    to_deregister: PendingDeregistration | None = None
    #: How its predecessor ended, if that crashed.
    crash: Crash | None = None


@value
class Send:
    """Send ``message`` to the registration actor of ``path``."""

    path: str
    message: RegistrationMessage


@value
class Show:
    """Send ``message`` to the status actor."""

    message: StatusMessage


@value
class Look:
    """Send ``message`` to the watcher of ``root``."""

    root: str
    message: LookNow


@value
class AnswerCaller:
    """Send ``message`` to the caller that asked for it."""

    reply: Address[RetryAnswered]
    message: RetryAnswered


@value
class AnswerCall:
    """Answer a call of Register."""

    reply: Address[CallAnswered]
    message: CallAnswered


@value
class HandlerRetired:
    """The removed handler of ``type`` has no plugin left: its actor may end."""

    type: str
    handler: HandlerPort


@value
class RootLeft:
    """No registration actor is left of a root that was removed: another node may have it."""

    root: str


@value
class Stopped:
    """A stop was asked for, and the last registration actor has ended."""


#: The effects that never wait.
Immediate = StartRegistration | Send | Look | AnswerCaller | AnswerCall | HandlerRetired | RootLeft | Stopped
Effect = Immediate | Show
