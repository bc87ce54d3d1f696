"""The values of the lifecycle of one socket: its states, the events that reach it and the commands that it gives.

What follows from what is decided in ``plugind.protocol.lifecycle``.
"""

from __future__ import annotations

import enum
from typing import assert_never

import attrs

from plugind.protocol import status
from plugind.protocol.messages import (
    Admitted,
    ClaimRefused,
    HandlerAvailable,
    HandlerWithdrawn,
    NameFreed,
    NoHandler,
    SocketAppeared,
    SocketTouched,
    SocketVanished,
    StopAsked,
    StopForced,
    TryNow,
)
from plugind.protocol.plugins import PluginInfo
from plugind.protocol.status import StateName


class Retry(enum.Enum):
    """What a failure means for the next try."""

    #: Wait as the backoff says, and try again.
    BACKOFF = "backoff"
    #: Nobody listens: stale, looked at again with backoff and on any event (behaviour 15).
    STALE = "stale"
    #: The same would come of every further try: parked until the socket changes or someone asks.
    NEVER = "never"


# --- states -----------------------------------------------------------------------------------------------------------


@attrs.frozen
class ThenDial:
    """Dial this generation next."""

    generation: int
    attempt: int = 1


@attrs.frozen
class ThenWait:
    """Wait out the backoff for this reason."""

    reason: str
    attempt: int


@attrs.frozen
class ThenPark:
    """Park for this reason, until a handler of ``until_type`` is added where that is given."""

    reason: str
    attempt: int
    until_type: str | None = None


@attrs.frozen
class ThenEnd:
    """End the actor: the socket is gone, or plugind stops."""

    stopped: bool = False


#: Where a registration goes once it owes nothing more: after Refusing and after Leaving.
Then = ThenDial | ThenWait | ThenPark | ThenEnd


@attrs.frozen
class Dialing:
    """Connecting to the socket; with ``owed``, only in order to notify a plugin that its handler has registered."""

    generation: int
    attempt: int
    owed: PluginInfo | None = None
    #: Which try to notify it is, when ``owed``.
    notify_try: int = 0


@attrs.frozen
class AskingInfo:
    """GetInfo is on its way."""

    generation: int
    attempt: int


@attrs.frozen
class Claiming:
    """Waiting to be admitted under (type, name); shown as validating."""

    generation: int
    attempt: int
    info: PluginInfo


@attrs.frozen
class Validating:
    """The handler is asked whether it accepts the plugin."""

    generation: int
    attempt: int
    info: PluginInfo


@attrs.frozen
class Registering:
    """The handler is asked to register; ``stopping`` ends the actor afterwards."""

    generation: int
    attempt: int
    info: PluginInfo
    stopping: bool = False


@attrs.frozen
class Notifying:
    """Telling the plugin that it is registered; ``stopping`` ends the actor afterwards."""

    generation: int
    attempt: int
    info: PluginInfo
    notify_try: int = 1
    stopping: bool = False


@attrs.frozen
class Refusing:
    """Telling the plugin that it is not registered, and why; whether that arrives is a fact of its own (behaviour 32).

    Shown as notifying. ``owed`` is to be deregistered afterwards, since Register was attempted.
    """

    generation: int
    attempt: int
    info: PluginInfo | None
    error: str
    then: Then
    owed: PluginInfo | None = None


@attrs.frozen
class Waiting:
    """Waiting out the backoff; with ``owed``, to notify a plugin that is registered already."""

    generation: int
    attempt: int
    reason: str
    info: PluginInfo | None = None
    owed: PluginInfo | None = None
    notify_try: int = 0


@attrs.frozen
class Stale:
    """A socket file that nobody listens on; its own state, cheap, looked at again (behaviour 15, fault 28)."""

    generation: int
    attempt: int
    reason: str


@attrs.frozen
class Parked:
    """No more tries until the socket changes, someone asks, or a handler of ``until_type`` is added."""

    generation: int
    attempt: int
    reason: str
    info: PluginInfo | None = None
    until_type: str | None = None


@attrs.frozen
class Registered:
    """The plugin is registered, and knows it."""

    generation: int
    attempt: int
    info: PluginInfo


@attrs.frozen
class Leaving:
    """The handler is asked to deregister ``info``; afterwards ``then``."""

    generation: int
    info: PluginInfo
    reason: str
    then: Then


@attrs.frozen
class Gone:
    """The end: nothing is owed, and the actor ends; ``stopped`` because plugind does, not because the socket went."""

    generation: int
    stopped: bool = False


State = (
    Dialing
    | AskingInfo
    | Claiming
    | Validating
    | Registering
    | Notifying
    | Refusing
    | Waiting
    | Stale
    | Parked
    | Registered
    | Leaving
    | Gone
)

# --- events: outcomes of commands (messages of the inbox are events too) ----------------------------------------------


@attrs.frozen
class Dialed:
    """The connection stands."""


@attrs.frozen
class Failed:
    """The command that was waited for failed, for this ``reason``."""

    reason: str
    retry: Retry = Retry.BACKOFF
    outcome: status.Outcome = status.Outcome.FAILED


@attrs.frozen
class InfoReceived:
    """GetInfo answered, within its limits."""

    info: PluginInfo


@attrs.frozen
class InfoRejected:
    """GetInfo answered what no handler may see; the plugin is told (faults 51, 72 and 73)."""

    reason: str


@attrs.frozen
class HandlerAccepted:
    """The handler did as it was asked."""


@attrs.frozen
class Notified:
    """NotifyRegistrationStatus was answered."""


@attrs.frozen
class TimerElapsed:
    """The backoff is over."""


Outcome = Dialed | Failed | InfoReceived | InfoRejected | HandlerAccepted | Notified | TimerElapsed
Message = (
    SocketAppeared
    | SocketVanished
    | SocketTouched
    | Admitted
    | NoHandler
    | ClaimRefused
    | HandlerAvailable
    | HandlerWithdrawn
    | NameFreed
    | TryNow
    | StopAsked
    | StopForced
)
Event = Outcome | Message

# --- commands ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class Dial:
    """Connect. ``patient`` allows for a plugin between bind and listen (behaviour 12); a socket that was refused once
    is looked at again quickly, by backoff."""

    patient: bool


@attrs.frozen
class AskInfo:
    """Call GetInfo."""


@attrs.frozen
class Claim:
    """Ask the reconciler to be admitted under this type and name."""

    info: PluginInfo


@attrs.frozen
class AskValidate:
    """Ask the handler to validate."""

    info: PluginInfo


@attrs.frozen
class AskRegister:
    """Ask the handler to register."""

    info: PluginInfo


@attrs.frozen
class AskDeregister:
    """Ask the handler to deregister; ``generation`` is the one that was registered."""

    info: PluginInfo
    generation: int


@attrs.frozen
class Notify:
    """Call NotifyRegistrationStatus; registered when ``error`` is None."""

    error: str | None


@attrs.frozen
class StartTimer:
    """Wait out the backoff after so many failures in a row."""

    failures: int


@attrs.frozen
class HangUp:
    """Close the connection, if there is one."""


@attrs.frozen
class Announce:
    """Tell the reconciler that the handler took the plugin."""


@attrs.frozen
class Release:
    """Give the claim of this generation back to the reconciler."""

    generation: int


#: Commands whose outcome is an event; a step has at most one of them, as its last.
WaitingCommand = Dial | AskInfo | Claim | AskValidate | AskRegister | AskDeregister | Notify | StartTimer
Command = WaitingCommand | HangUp | Announce | Release
Step = tuple[State, tuple[Command, ...]]


def owed_by(state: State) -> PluginInfo | None:
    """Return the plugin for which Register was asked and Deregister not yet; Leaving has asked it already."""
    match state:
        case Registering() | Notifying() | Registered():
            return state.info
        case Dialing() | Waiting() | Refusing():
            return state.owed
        case AskingInfo() | Claiming() | Validating() | Stale() | Parked() | Leaving() | Gone():
            return None
    assert_never(state)


def name_of(state: State) -> StateName:
    """Return the name under which users see ``state``."""
    return _NAMES[type(state)]


_NAMES: dict[type[State], StateName] = {
    Dialing: StateName.DIALING,
    AskingInfo: StateName.ASKING_INFO,
    Claiming: StateName.VALIDATING,
    Validating: StateName.VALIDATING,
    Registering: StateName.REGISTERING,
    Notifying: StateName.NOTIFYING,
    Refusing: StateName.NOTIFYING,
    Waiting: StateName.WAITING,
    Stale: StateName.STALE,
    Parked: StateName.PARKED,
    Registered: StateName.REGISTERED,
    Leaving: StateName.LEAVING,
    Gone: StateName.GONE,
}
