"""What follows a try of a registration, and what brings the next try forward.

A registration tries, and between its tries it pauses. What it does next is a value: a :class:`Try`, a :class:`Pause`, a
rest (:data:`REST`, or :class:`Observe` in observe mode) or its :class:`End`.

An event may bring a try forward once in each step of the backoff. A socket that is touched, or whose name is
free again, is tried at once although its backoff is not over. If that held for each such event, a plugin could have
itself dialed a thousand times a second by touching its own socket. So a registration is *hurried* from then on: the
pause after that try is one that no further event shortens. The end of the pause, a retry that a user asks for, and a
new generation end that.
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

#: Tries to notify a plugin of its registration, each on a new connection, before the registration is rolled back
#: (fault 35).
NOTIFY_TRIES = 5


@value
class Try:
    """Dial, and go through the whole registration."""

    #: The number of the try in its generation.
    attempt: int = 1
    #: What the plugin answered or was told in an earlier try.
    cause: Cause | None = None


@value
class Pause:
    """Make no try until the backoff is over, or until something brings the next try forward."""

    #: How it is shown: waiting, stale (nobody listens: behaviour 15, fault 28) or parked (without a timer).
    state: StateName
    reason: str
    #: The number of the last try.
    attempt: int
    cause: Cause | None = None
    #: No event brings the next try forward, but a retry that is requested does.
    firm: bool = False
    #: A plugin that is parked is tried once a handler of this type is added (behaviour 29).
    until_type: str | None = None
    #: If given, the pause lasts until then, because so many lives at the path were short (fault 49).
    not_before: float | None = None
    short_lives: int = 0
    #: After how many failures the backoff is that of this pause.
    failures: int = 1
    #: The number of the last try to notify a plugin that its handler has registered, if the pause is between two.
    notify_try: int | None = None

    @property
    def has_timer(self) -> bool:
        """Whether the pause ends by itself."""
        return self.state is not StateName.PARKED


@value
class Rest:
    """The plugin is registered, and was notified of it."""


@value
class NotifyAgain:
    """Dial again, only to notify the plugin that it is registered (behaviour 33)."""

    notify_try: int


@value
class Observe:
    """In observe mode: the plugin has said what it is, and is followed; another consumer registers it."""

    info: PluginInfo
    #: What it had said before at the same socket, in words, if that was something else.
    before: str | None = None


@value
class AskAgain:
    """Ask an observed plugin for its info again; nobody is shown that."""

    observed: Observe


@value
class End:
    """End the actor: the socket was removed, or plugind stops."""

    stopped: bool = False


Next = Try | NotifyAgain | Pause | Rest | Observe | AskAgain | End
REST = Rest()


def wait(reason: str, attempt: int, cause: Cause | None = None) -> Pause:
    """Return the pause of the backoff after a try."""
    return Pause(StateName.WAITING, reason, attempt, cause, failures=max(attempt, 1))


def park(reason: str, attempt: int, cause: Cause | None = None, until_type: str | None = None) -> Pause:
    """Return a pause without a timer."""
    return Pause(StateName.PARKED, reason, attempt, cause, until_type=until_type)


def first(appeared: SocketAppeared, crash: Crash | None = None) -> Try | Pause:
    """Return what an actor begins with for a socket, whose last actor may have ended in a crash (fault 85)."""
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
    """Whether a handler that has registered the plugin keeps it: nothing follows but the rest, or to notify it."""
    return isinstance(then, Rest | NotifyAgain) or (isinstance(then, Pause) and then.notify_try is not None)


def again(info: PluginInfo | None, error: str, reason: str, attempt: int, cause: Cause) -> Pause:
    """Return the pause after a try that failed: the backoff, or the next call of a plugin that called Register."""
    if info is None or not info.called or info.answered:
        return wait(error, attempt, cause)
    return park(f"{reason}: {CALL_AGAIN}", attempt, cause)


def after_timer(pause: Pause) -> Try | NotifyAgain:
    """Return the try that follows a pause whose time is over."""
    if pause.notify_try is not None:
        return NotifyAgain(pause.notify_try + 1)
    return Try(pause.attempt + 1, kept(pause.cause))


def changed(before: PluginInfo, after: PluginInfo) -> str:
    """Return in words what a plugin has said before, as far as it says something else now; empty if it does not."""
    said = (
        ("type", before.type, after.type),
        ("name", before.name, after.name),
        ("endpoint", before.endpoint, after.endpoint),
        ("versions", ", ".join(before.versions), ", ".join(after.versions)),
    )
    words = [f"the {what} {quoted(was)}" for what, was, is_now in said if was != is_now]
    return f"at the same socket it gave {' and '.join(words)} before" if words else ""


# --- what brings the next try forward ---------------------------------------------------------------------------------

#: A message that may be a reason to try sooner than planned.
Trigger = SocketTouched | NameFreed | TryNow | HandlerAvailable | ListenerFound
#: Those that whoever has access to a socket or a name can cause any number of.
HURRYING = (SocketTouched, NameFreed)


class _Kind(enum.Enum):
    """What the next try waits for. Each may also be brought forward by a trigger; see ``_RETRIGGERS``."""

    #: The backoff ends.
    BACKOFF = "backoff"
    #: The backoff ends, and the try is to notify a plugin that the handler has registered.
    NOTIFY_BACKOFF = "notify backoff"
    #: The plugin is deregistered; then the backoff begins, and ends.
    LATER_BACKOFF = "later backoff"
    #: The backoff ends, after a dial of a socket without a listener.
    STALE = "stale"
    #: Another socket appears, this one is touched, or a retry is asked; there is no timer.
    PARKED = "parked"
    #: Another socket appears, a handler of the plugin's type is added, or a retry is asked; there is no timer.
    NO_HANDLER = "no handler"
    #: The backoff ends, if there is one, another socket appears, or a retry is asked.
    FIRM = "firm"


class _Count(enum.Enum):
    """How the try that follows a trigger is counted."""

    #: One more than the last one: the backoff goes on where it is.
    NEXT = "next"
    #: As the first one: the backoff starts fresh.
    FRESH = "fresh"

    def after(self, attempt: int) -> int:
        return attempt + 1 if self is _Count.NEXT else 1


#: Which triggers bring the next try forward, and its number. A pair that is not listed changes nothing.
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
    """What a trigger makes of a pause."""

    #: The try that follows at once, or the pause that goes on.
    then: Try | NotifyAgain | Pause
    #: Whether no further event shortens the next pause.
    hurried: bool = False


def brought_forward(pause: Pause, message: Trigger, *, hurried: bool, later: bool = False) -> Brought:
    """Return what ``message`` makes of a ``pause``, which begins only ``later`` if the plugin is deregistered first.

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
    # Once there is a handler, its absence is no cause any more.
    cause = None if isinstance(message, HandlerAvailable) else kept(pause.cause)
    return Brought(Try(count.after(pause.attempt), cause), hurried=hurries)


def _wait_out(pause: Pause) -> Pause:
    """Do not try sooner, since an event has brought the last try forward: what is parked waits for its backoff."""
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
