"""What follows a try of a registration, and what brings the next try forward.

A registration alternates between tries and pauses. What it does next is a value: a :class:`Try`, a :class:`Pause`, a
rest (:data:`REST`, or :class:`Observe` in observe mode) or its :class:`End`.

When a socket is touched, or its name is free again, it is tried at once although the backoff is not over. If each such
event did that, a plugin could have itself dialed a thousand times a second by touching its own socket. So after such a
try the registration is *hurried*: no further event shortens the next pause. The end of the pause, a retry that a user
asks for, and a new generation reset that.
"""

from __future__ import annotations

import enum

import attrs

from ..messages.discovery import SocketAppeared, SocketTouched
from ..messages.registration import HandlerAvailable, ListenerFound, NameFreed, TryNow
from ..plugins.info import PluginInfo
from ..text import quoted
from ..values import value
from ..words import StateName
from .crashes import Crash
from .failures import CALL_AGAIN, Cause, kept
from .lives import reason as reason_of_lives

#: The most tries to notify a plugin, each on a new connection, before its registration is rolled back (fault 35).
NOTIFY_TRIES = 5


@value
class Try:
    """Dial, and go through the whole registration."""

    attempt: int = 1
    #: What the plugin answered or was told in an earlier try.
    cause: Cause | None = None


@value
class Pause:
    """Wait until the backoff is over, or until an event brings the next try forward."""

    #: The state that is shown: waiting, stale (nobody listens: behaviour 15, fault 28) or parked (no timer).
    state: StateName
    reason: str
    attempt: int
    cause: Cause | None = None
    #: Whether only a requested retry brings the next try forward, and no other event.
    firm: bool = False
    #: The type for which a handler has to be added before a parked plugin is tried (behaviour 29).
    until_type: str | None = None
    #: When the pause ends after short lives at the path (fault 49); None without such lives.
    not_before: float | None = None
    short_lives: int = 0
    #: The number of failures that determines the backoff.
    failures: int = 1
    #: The number of the last try to notify a registered plugin, if this is the pause after such a try.
    notify_try: int | None = None

    @property
    def has_timer(self) -> bool:
        """Whether the pause ends by itself."""
        return self.state is not StateName.PARKED


@value
class Rest:
    """Rest: the plugin is registered and was notified."""

    reason: str | None = None


@value
class NotifyAgain:
    """Dial again, only to notify the plugin that it is registered (behaviour 33)."""

    notify_try: int


@value
class Observe:
    """In observe mode: follow a plugin that has given its info; another consumer registers it."""

    info: PluginInfo
    #: In words, what the plugin said before at the same socket; None if nothing changed.
    before: str | None = None


@value
class AskAgain:
    """Ask an observed plugin for its info again, which is not shown."""

    observed: Observe


@value
class End:
    """End the actor: the socket was removed, or plugind stops."""

    stopped: bool = False


Next = Try | NotifyAgain | Pause | Rest | Observe | AskAgain | End
REST = Rest()
NOT_TOLD_AGAIN = Rest("not notified again: it was notified before plugind was started again")


def wait(reason: str, attempt: int, cause: Cause | None = None) -> Pause:
    """Return the pause of the backoff after a try."""
    return Pause(StateName.WAITING, reason, attempt, cause, failures=max(attempt, 1))


def park(reason: str, attempt: int, cause: Cause | None = None, until_type: str | None = None) -> Pause:
    """Return a pause without a timer."""
    return Pause(StateName.PARKED, reason, attempt, cause, until_type=until_type)


def first(appeared: SocketAppeared, crash: Crash | None = None) -> Try | Pause:
    """Return the first step for a socket whose last actor may have crashed (fault 85)."""
    if crash is not None:
        state = StateName.PARKED if crash.parks else StateName.WAITING
        return Pause(state, crash.reason, crash.count, firm=True, failures=crash.count)
    if appeared.not_before is None:
        return Try()
    lives = appeared.short_lives
    return Pause(
        StateName.WAITING,
        reason_of_lives(lives),
        0,
        firm=True,
        not_before=appeared.not_before,
        short_lives=lives,
        failures=lives,
    )


def stays_registered(then: Next) -> bool:
    """Whether a registered plugin stays registered: the actor rests, or only notifies the plugin."""
    return isinstance(then, Rest | NotifyAgain) or (isinstance(then, Pause) and then.notify_try is not None)


def again(info: PluginInfo | None, error: str, reason: str, attempt: int, cause: Cause) -> Pause:
    """Return the pause after a failed try: the backoff, or, if the plugin called Register, a wait for its next call."""
    if info is None or not info.called or info.answered:
        return wait(error, attempt, cause)
    return park(f"{reason}: {CALL_AGAIN}", attempt, cause)


def after_timer(pause: Pause) -> Try | NotifyAgain:
    """Return the try that follows when a pause is over."""
    if pause.notify_try is not None:
        return NotifyAgain(pause.notify_try + 1)
    return Try(pause.attempt + 1, kept(pause.cause))


def changed(before: PluginInfo, after: PluginInfo) -> str:
    """Return in words which parts of the info were different before; empty if nothing has changed."""
    said = (
        ("type", before.type, after.type),
        ("name", before.name, after.name),
        ("endpoint", before.endpoint, after.endpoint),
        ("versions", ", ".join(before.versions), ", ".join(after.versions)),
    )
    words = [f"the {what} {quoted(was)}" for what, was, is_now in said if was != is_now]
    return f"at the same socket it gave {' and '.join(words)} before" if words else ""


# --- what brings the next try forward ---------------------------------------------------------------------------------

Trigger = SocketTouched | NameFreed | TryNow | HandlerAvailable | ListenerFound
#: Messages that anybody with access to a socket or a name can cause without limit.
HURRYING = (SocketTouched, NameFreed)


class _Kind(enum.Enum):
    """What the next try waits for. A trigger can also start it; see ``_RETRIGGERS``."""

    BACKOFF = "backoff"
    #: The end of the backoff between tries to notify a registered plugin.
    NOTIFY_BACKOFF = "notify backoff"
    #: The end of a backoff that begins after a Deregister.
    LATER_BACKOFF = "later backoff"
    #: The end of the backoff after a dial of a socket without a listener.
    STALE = "stale"
    #: A new socket, a touch of this one, or a requested retry; there is no timer.
    PARKED = "parked"
    #: A new socket, a handler for the plugin's type, or a requested retry; there is no timer.
    NO_HANDLER = "no handler"
    #: The end of the backoff if there is one, a new socket, or a requested retry.
    FIRM = "firm"


class _Count(enum.Enum):
    """How the try that follows a trigger is counted."""

    NEXT = "next"
    #: As the first one: the backoff starts afresh.
    FRESH = "fresh"

    def after(self, attempt: int) -> int:
        return attempt + 1 if self is _Count.NEXT else 1


#: The triggers that bring the next try forward, and its number. A pair that is not listed changes nothing.
_RETRIGGERS: dict[tuple[_Kind, type[Trigger]], _Count] = {
    (_Kind.BACKOFF, TryNow): _Count.FRESH,
    (_Kind.BACKOFF, SocketTouched): _Count.NEXT,
    (_Kind.BACKOFF, NameFreed): _Count.NEXT,
    (_Kind.NOTIFY_BACKOFF, TryNow): _Count.FRESH,
    (_Kind.NOTIFY_BACKOFF, SocketTouched): _Count.NEXT,
    (_Kind.LATER_BACKOFF, TryNow): _Count.FRESH,
    (_Kind.LATER_BACKOFF, NameFreed): _Count.NEXT,
    (_Kind.STALE, TryNow): _Count.FRESH,
    (_Kind.STALE, SocketTouched): _Count.NEXT,
    (_Kind.STALE, ListenerFound): _Count.FRESH,
    (_Kind.PARKED, TryNow): _Count.FRESH,
    (_Kind.PARKED, SocketTouched): _Count.NEXT,
    (_Kind.NO_HANDLER, TryNow): _Count.FRESH,
    (_Kind.NO_HANDLER, HandlerAvailable): _Count.FRESH,
    (_Kind.FIRM, TryNow): _Count.FRESH,
}


@value
class Brought:
    """The effect of a trigger on a pause."""

    then: Try | NotifyAgain | Pause
    #: Whether no further event shortens the next pause.
    hurried: bool = False


def brought_forward(pause: Pause, message: Trigger, *, hurried: bool, later: bool = False) -> Brought:
    """Return the effect of ``message`` on ``pause``; ``later`` says that a Deregister comes before the pause.

    ``hurried`` says that an event has brought the last try of this generation forward.
    """
    count = _RETRIGGERS.get((_kind_of(pause, later=later), type(message)))
    if count is None or (isinstance(message, HandlerAvailable) and message.type != pause.until_type):
        return Brought(pause, hurried=hurried)
    hurries = isinstance(message, HURRYING)
    if hurries and hurried:
        return Brought(_wait_out(pause), hurried=True)
    if pause.notify_try is not None:
        return Brought(NotifyAgain(count.after(pause.notify_try)), hurried=hurries)
    # The absence of a handler is no longer the cause.
    cause = None if isinstance(message, HandlerAvailable) else kept(pause.cause)
    return Brought(Try(count.after(pause.attempt), cause), hurried=hurries)


def _wait_out(pause: Pause) -> Pause:
    """Return the pause of a hurried registration: a parked plugin now waits for its backoff."""
    if pause.has_timer:
        return pause
    return attrs.evolve(pause, state=StateName.WAITING, failures=max(pause.attempt, 1))


def _kind_of(pause: Pause, *, later: bool) -> _Kind:
    if pause.firm:
        return _Kind.FIRM
    match pause.state:
        case StateName.STALE:
            return _Kind.STALE
        case StateName.PARKED:
            return _Kind.PARKED if pause.until_type is None else _Kind.NO_HANDLER
        case _ if pause.notify_try is not None:
            return _Kind.NOTIFY_BACKOFF
        case _:
            return _Kind.LATER_BACKOFF if later else _Kind.BACKOFF
