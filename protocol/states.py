"""The values of one socket's lifecycle: its states, the events that it takes and the commands that it returns.

``plugind.protocol.lifecycle`` decides which state follows.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import enum
from typing import assert_never

import attrs

from . import status
from .messages import LifecycleMessage
from .plugins import PluginInfo
from .status import StateName
from .values import value


class Retry(enum.Enum):
    """What a failure means for the next try."""

    #: Wait as the backoff says, and try again.
    BACKOFF = "backoff"
    #: There is no listener: the socket is stale, and is dialed again by backoff and when it changes (behaviour 15).
    STALE = "stale"
    #: Every further try would fail in the same way: the plugin is parked until the socket changes or a retry is
    #: requested.
    NEVER = "never"


@value
class Cause:
    """Why a plugin is not registered, in few words: what users are shown first.

    What the plugin answered, or was told, stays the cause in all later tries of its generation, until it answers
    something else or is registered. A registrar that exits once it is refused would otherwise be shown with the dials
    that fail after that, and nothing would tell why it was refused.
    """

    #: The error alone.
    error: str
    #: Whether the plugin answered so or was told so.
    answered: bool = False
    #: How the last try ended, if the plugin did not answer in it.
    now: str | None = None

    def __str__(self) -> str:
        return self.error if self.now is None else f"{self.error} (now: {self.now})"


# --- states -----------------------------------------------------------------------------------------------------------


@value
class Paced:
    """What the states between two tries, and those of a try, have in common."""

    #: An event has brought the last try of this generation forward, so none does so again before the next wait is over
    #: (``plugind.protocol.pace``).
    hurried: bool = attrs.field(default=False, kw_only=True)


@value
class ThenDial:
    """Dial this generation next."""

    generation: int
    attempt: int = 1
    cause: Cause | None = None
    #: If given, wait until then, because so many lives at the path were short (fault 49).
    not_before: float | None = None
    short_lives: int = 0


@value
class ThenWait:
    """Wait out the backoff for this reason."""

    reason: str
    attempt: int
    cause: Cause | None = None
    #: No event brings the next try forward, but a retry that is requested does.
    firm: bool = False


@value
class ThenPark:
    """Park for this reason; if ``until_type`` is given, until a handler of that type is added."""

    reason: str
    attempt: int
    until_type: str | None = None
    cause: Cause | None = None
    #: As in :class:`ThenWait`.
    firm: bool = False


@value
class ThenEnd:
    """End the actor: the socket was removed, or plugind stops."""

    stopped: bool = False


#: What a registration does next: after Refusing and after Leaving.
Then = ThenDial | ThenWait | ThenPark | ThenEnd


@value
class Dialing(Paced):
    """Connecting to the socket."""

    generation: int
    attempt: int
    #: The plugin that the handler has registered, if the connection is only to notify it of that.
    to_notify: PluginInfo | None = None
    #: The number of the try to notify it.
    notify_try: int = 0
    #: What the plugin answered or was told in an earlier try; this holds for each state of a try.
    cause: Cause | None = None
    #: What keeps this process from dialing; this is not a failure of the plugin.
    held_up: str | None = None


@value
class AskingInfo(Paced):
    """The plugin is asked for its info."""

    generation: int
    attempt: int
    cause: Cause | None = None
    #: Why the plugin has more time to answer than GetInfo's second; None if that has begun.
    delayed: str | None = None


@value
class Claiming(Paced):
    """The reconciler is asked to admit the plugin to its (type, name); shown as validating."""

    generation: int
    attempt: int
    info: PluginInfo
    cause: Cause | None = None


@value
class Validating(Paced):
    """The handler is asked whether it accepts the plugin."""

    generation: int
    attempt: int
    info: PluginInfo
    cause: Cause | None = None


@value
class Registering(Paced):
    """The handler is asked to register; ``stopping`` ends the actor afterwards."""

    generation: int
    attempt: int
    info: PluginInfo
    stopping: bool = False
    cause: Cause | None = None


@value
class Notifying(Paced):
    """The plugin is notified that it is registered; ``stopping`` ends the actor afterwards."""

    generation: int
    attempt: int
    info: PluginInfo
    notify_try: int = 1
    stopping: bool = False
    cause: Cause | None = None


@value
class Refusing(Paced):
    """The plugin is notified that it is not registered, and why.

    What follows does not depend on whether the notification arrives (behaviour 32).

    Shown as notifying.
    """

    generation: int
    attempt: int
    info: PluginInfo | None
    error: str
    then: Then
    #: The plugin to deregister afterwards, if Register was attempted.
    to_deregister: PluginInfo | None = None
    cause: Cause | None = None


@value
class Waiting(Paced):
    """Waiting out the backoff."""

    generation: int
    attempt: int
    reason: str
    info: PluginInfo | None = None
    #: The plugin that the handler has registered, if the next try is only to notify it of that.
    to_notify: PluginInfo | None = None
    #: The number of the last try to notify it.
    notify_try: int = 0
    cause: Cause | None = None
    #: As in :class:`ThenWait`.
    firm: bool = False


@value
class Stale(Paced):
    """The socket has no listener; it is dialed again by backoff (behaviour 15, fault 28)."""

    generation: int
    attempt: int
    reason: str
    cause: Cause | None = None


@value
class Parked(Paced):
    """No more tries until the socket changes, a retry is asked, or a handler of ``until_type`` is added."""

    generation: int
    attempt: int
    reason: str
    info: PluginInfo | None = None
    until_type: str | None = None
    cause: Cause | None = None
    #: As in :class:`ThenWait`.
    firm: bool = False


@value
class Registered:
    """The plugin is registered, and was notified of it."""

    generation: int
    attempt: int
    info: PluginInfo


@value
class Observed:
    """In observe mode: the plugin has said what it is, and is followed; another consumer registers it."""

    generation: int
    attempt: int
    info: PluginInfo
    #: What it had said before at the same socket, in words, if that was something else.
    before: str | None = None
    #: Whether it is asked for its info again; nobody is shown that.
    asking: bool = False


@value
class Leaving(Paced):
    """The handler is asked to deregister ``info``; afterwards ``then``."""

    generation: int
    info: PluginInfo
    reason: str
    then: Then
    cause: Cause | None = None


@value
class Gone:
    """The end of the actor: no deregistration is pending.

    ``stopped`` says that it ends because plugind stops; otherwise the socket was removed.
    """

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
    | Observed
    | Leaving
    | Gone
)


def to_deregister(state: State) -> PluginInfo | None:
    """Return the plugin that the handler may have registered, and that it has not deregistered yet."""
    match state:
        case Registering() | Notifying() | Registered() | Leaving():
            return state.info
        case Dialing() | Waiting():
            return state.to_notify
        case Refusing():
            return state.to_deregister
        case AskingInfo() | Claiming() | Validating() | Stale() | Parked() | Observed() | Gone():
            return None
    assert_never(state)


# --- events: outcomes of commands (messages of the inbox are events too) ----------------------------------------------


@value
class Dialed:
    """The connection is established."""


@value
class Failed:
    """The command in progress failed, for this ``reason``."""

    reason: str
    retry: Retry = Retry.BACKOFF
    outcome: status.Outcome = status.Outcome.FAILED
    #: The error alone; None if ``reason`` is no more than that.
    cause: str | None = None
    #: Whether it is what the plugin answered.
    answered: bool = False


@value
class Replaced:
    """Another file is at the path than the socket of this generation: no connection, but not an error of the plugin."""


@value
class HeldUp:
    """The dial could not be made for a ``reason`` in this process: it does not count as an attempt (fault 46)."""

    reason: str


@value
class InfoDelayed:
    """GetInfo goes on for longer than its second, for a ``reason`` to be shown; None: it has no reason any more."""

    reason: str | None


@value
class InfoReceived:
    """GetInfo answered, within its limits."""

    info: PluginInfo


@value
class InfoObserved:
    """GetInfo answered, within its limits, in observe mode."""

    info: PluginInfo


@value
class InfoRejected:
    """The answer to GetInfo is not acceptable; the plugin is notified (faults 51, 72 and 73)."""

    reason: str
    #: Type and name, if they are sound: people look for the plugin by its name.
    info: PluginInfo | None = None
    #: Whether the plugin is not notified, because it is only observed.
    silent: bool = False


@value
class HandlerAccepted:
    """The handler carried out the ask without an error."""


@value
class Notified:
    """NotifyRegistrationStatus was answered."""


@value
class TimerElapsed:
    """The backoff is over."""


CommandOutcome = (
    Dialed
    | Replaced
    | HeldUp
    | Failed
    | InfoDelayed
    | InfoReceived
    | InfoObserved
    | InfoRejected
    | HandlerAccepted
    | Notified
    | TimerElapsed
)
#: Their classes: isinstance takes half as long for a tuple.
COMMAND_OUTCOMES = (
    HandlerAccepted,
    Dialed,
    InfoReceived,
    Notified,
    Failed,
    TimerElapsed,
    InfoObserved,
    InfoRejected,
    Replaced,
    HeldUp,
)
Event = CommandOutcome | LifecycleMessage

# --- commands ---------------------------------------------------------------------------------------------------------


@value
class Dial:
    """Connect.

    ``patient`` retries a refused connection for a moment, for a plugin between bind and listen (behaviour 12). A socket
    that has refused before is not waited for: it is retried by backoff. ``held_up`` waits for as long as this process
    cannot dial; without it, the outcome says so. ``uid`` is the user that must listen: the plugin is only notified, and
    this user answered GetInfo.
    """

    patient: bool
    held_up: bool = False
    uid: int | None = None


@value
class AskInfo:
    """Call GetInfo."""


@value
class ClaimName:
    """Ask the reconciler to be admitted under this type and name."""

    info: PluginInfo


@value
class AskValidate:
    """Ask the handler to validate."""

    info: PluginInfo


@value
class AskRegister:
    """Ask the handler to register."""

    info: PluginInfo


@value
class AskDeregister:
    """Ask the handler to deregister; ``generation`` is the one that was registered."""

    info: PluginInfo
    generation: int


@value
class Refusal:
    """What a plugin is told that called Register: the reason alone, without the reference's words around it."""

    text: str
    outcome: status.Outcome


@value
class Notify:
    """Call NotifyRegistrationStatus, with success if ``error`` is None; or answer the plugin's call of Register."""

    error: str | None
    #: The answer to a plugin that called; None for any other, and for success.
    refusal: Refusal | None = None


@value
class StartTimer:
    """Wait out the backoff after so many failures in a row, or until a certain time."""

    failures: int
    not_before: float | None = None


@value
class AskLater:
    """Wait until an observed plugin is to be asked for its info again."""


@value
class Observe:
    """Follow the plugin over its endpoint from now on, in observe mode."""

    info: PluginInfo


@value
class StopObserving:
    """Follow the plugin no more."""


@value
class HangUp:
    """Close the connection, if there is one."""


@value
class Announce:
    """Report to the reconciler that the handler has registered the plugin."""


@value
class ReportReplaced:
    """Report to the reconciler that another file is at the path, so that the watcher looks there."""


@value
class Release:
    """Release the claim of this generation."""

    generation: int


@value
class PassTurn:
    """Report that no claim follows, since the reconciler may have said that it is this plugin's turn to make one."""


#: Commands whose outcome is an event; a step has at most one of them, as its last.
WaitingCommand = Dial | AskInfo | ClaimName | AskValidate | AskRegister | AskDeregister | Notify | StartTimer | AskLater
#: Their classes: isinstance takes half as long for a tuple.
WAITING_COMMANDS = (AskInfo, ClaimName, AskValidate, AskRegister, Notify, Dial, AskDeregister, StartTimer, AskLater)
Command = WaitingCommand | HangUp | Announce | ReportReplaced | Release | PassTurn | Observe | StopObserving
Step = tuple[State, tuple[Command, ...]]


def pending_deregistration(state: State) -> PluginInfo | None:
    """Return the plugin for which Register was asked, and Deregister not yet; in ``Leaving`` it has been asked."""
    match state:
        case Registering() | Notifying() | Registered():
            return state.info
        case Dialing() | Waiting():
            return state.to_notify
        case Refusing():
            return state.to_deregister
        case AskingInfo() | Claiming() | Validating() | Stale() | Parked() | Observed() | Leaving() | Gone():
            return None
    assert_never(state)


def cause_of(state: State) -> Cause | None:
    """Return why the plugin is not registered, as far as ``state`` knows more of it than its reason."""
    match state:
        case Registered() | Observed() | Gone():
            return None
        case _:
            return state.cause


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
    Observed: StateName.OBSERVED,
    Leaving: StateName.LEAVING,
    Gone: StateName.GONE,
}
