"""The messages to a registration actor."""

from __future__ import annotations

from ..values import value
from .addresses import Address
from .config import SettingsChanged
from .discovery import SocketAppeared, SocketTouched, SocketVanished
from .reconciler import Claimed, HandlerPort, ReportAsked, RetryAnswered, StopAsked, StopForced


@value
class Admitted:
    """The claim is admitted: this handler serves the plugin."""

    claimed: Claimed
    handler: HandlerPort
    #: Whether another plugin waits for the name already: see :class:`NameWanted`.
    wanted: bool = False


@value
class NameWanted:
    """Another plugin waits until this admitted one is registered, has failed, or has left the name.

    See :meth:`HandlerPort.give_way`.
    """


@value
class NoHandler:
    """No handler takes plugins of this type yet (behaviour 29)."""

    claimed: Claimed
    reason: str
    #: The error alone; None if it equals ``reason``.
    cause: str | None = None
    #: Whether the plugin is not told, because its handler is only away.
    silent: bool = False


@value
class ClaimRefused:
    """The policy of the type does not admit the plugin while another one has the name."""

    claimed: Claimed
    reason: str


Admission = Admitted | NoHandler | ClaimRefused


@value
class HandlerAvailable:
    """A handler for ``type`` was added: a plugin that is parked for it is tried at once (behaviour 29)."""

    type: str


@value
class HandlerWithdrawn:
    """The handler for ``type`` was removed: deregister with it now."""

    type: str


@value
class NameFreed:
    """Another instance of the same name is gone: a refused plugin can be accepted now (behaviour 37)."""


@value
class TryNow:
    """Try now, for ``plugind retry``. The actor answers at once, even while it calls the plugin."""

    reply: Address[RetryAnswered] | None = None


@value
class ListenerFound:
    """Somebody listens on the stale socket again: it is tried at once, with a fresh backoff (behaviour 15)."""

    path: str
    generation: int


@value
class ListenerLost:
    """Deregister the registered plugin: its user is no longer trusted, or nobody listens on its socket.

    The latter is sent only with ``deregister_not_serving``, or in observe mode (fault 39).
    """

    path: str
    generation: int
    reason: str


RegistrationMessage = (
    SocketAppeared
    | SocketVanished
    | SocketTouched
    | Admission
    | HandlerAvailable
    | HandlerWithdrawn
    | NameFreed
    | TryNow
    | ListenerFound
    | ListenerLost
    | StopAsked
    | StopForced
    | NameWanted
    | ReportAsked
    | SettingsChanged
)
