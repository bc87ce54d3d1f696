"""The effects that ``plugind.protocol.world.worlds`` returns and the reconciler carries out."""

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
    """A deregistration that a crashed registration actor left to its successor."""

    info: PluginInfo
    generation: int
    handler: HandlerPort
    #: Whether the plugin was registered before the crash.
    registered: bool = False


class RegistrationCrashedError(Exception):
    """A registration actor crashed, with the error as the cause, and left a deregistration to its successor."""

    def __init__(self, pending: PendingDeregistration) -> None:
        super().__init__(f"{pending.info.type} {pending.info.name!r} is still to be deregistered")
        self.pending = pending


@value
class StartRegistration:
    """Start a registration actor for this socket. It first does the pending deregistration, if there is one."""

    appeared: SocketAppeared
    to_deregister: PendingDeregistration | None = None
    #: The crash of its predecessor. After that the actor waits, or parks (fault 85).
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
    """Answer the caller that requested a retry."""

    reply: Address[RetryAnswered]
    message: RetryAnswered


@value
class AnswerCall:
    """Answer a call of Register."""

    reply: Address[CallAnswered]
    message: CallAnswered


@value
class HandlerRetired:
    """The removed handler of ``type`` has no plugins left: its actor may end."""

    type: str
    handler: HandlerPort


@value
class RootLeft:
    """A removed root has no registration actors left: another node may have it."""

    root: str


@value
class Stopped:
    """A stop was requested, and the last registration actor has ended."""


Immediate = StartRegistration | Send | Look | AnswerCaller | AnswerCall | HandlerRetired | RootLeft | Stopped
Effect = Immediate | Show
