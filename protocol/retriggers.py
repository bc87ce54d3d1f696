"""What brings the next try of a registration forward, for ``plugind.protocol.lifecycle``.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import enum
from typing import assert_never

import attrs

from .messages import (
    HandlerAvailable,
    ListenerFound,
    NameFreed,
    SocketTouched,
    TryNow,
)
from .moves import enter, kept, notify_again
from .pace import HURRYING, is_hurried
from .states import (
    Leaving,
    Parked,
    Refusing,
    Stale,
    StartTimer,
    State,
    Step,
    ThenDial,
    ThenPark,
    ThenWait,
    Waiting,
)

#: A message that may be a reason to try sooner than planned.
_Trigger = SocketTouched | NameFreed | TryNow | HandlerAvailable | ListenerFound


#: A state without a try under way, or what follows a state that ends one.
_Paused = Waiting | Stale | Parked | ThenWait | ThenPark


class _Pause(enum.Enum):
    """What the next try waits for. Each may also be brought forward by a trigger; see ``_RETRIGGERS``."""

    #: The backoff ends.
    BACKOFF = "backoff"
    #: The backoff ends, and the try is to notify a plugin that the handler has registered.
    NOTIFY_BACKOFF = "notify backoff"
    #: The plugin is notified of its refusal, or deregistered; then the backoff begins, and ends.
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
_RETRIGGERS: dict[tuple[_Pause, type[_Trigger]], _Count] = {
    (_Pause.BACKOFF, TryNow): _Count.FRESH,
    (_Pause.BACKOFF, SocketTouched): _Count.NEXT,
    (_Pause.BACKOFF, NameFreed): _Count.NEXT,
    (_Pause.NOTIFY_BACKOFF, TryNow): _Count.FRESH,
    (_Pause.NOTIFY_BACKOFF, SocketTouched): _Count.NEXT,
    (_Pause.LATER_BACKOFF, TryNow): _Count.FRESH,
    (_Pause.LATER_BACKOFF, NameFreed): _Count.NEXT,
    (_Pause.STALE, TryNow): _Count.FRESH,
    (_Pause.STALE, SocketTouched): _Count.NEXT,
    (_Pause.STALE, ListenerFound): _Count.FRESH,
    (_Pause.PARKED, TryNow): _Count.FRESH,
    (_Pause.PARKED, SocketTouched): _Count.NEXT,
    (_Pause.NO_HANDLER, TryNow): _Count.FRESH,
    (_Pause.NO_HANDLER, HandlerAvailable): _Count.FRESH,
    (_Pause.FIRM, TryNow): _Count.FRESH,
}


def retrigger(state: State, event: _Trigger) -> Step:
    """Try sooner than planned, if ``event`` is a reason to do so."""
    if isinstance(event, TryNow) and isinstance(state, Refusing | Leaving) and isinstance(state.then, ThenDial):
        return attrs.evolve(state, then=attrs.evolve(state.then, not_before=None, short_lives=0)), ()
    paused = state.then if isinstance(state, Refusing | Leaving) else state
    if not isinstance(paused, _Paused) or _is_for_another_type(event, paused):
        return state, ()
    count = _RETRIGGERS.get((_pause_of(paused), type(event)))
    if count is None:
        return state, ()
    if isinstance(event, HURRYING) and is_hurried(state):
        return _wait_out(state)
    # Once there is a handler, its absence is no cause any more.
    cause = None if isinstance(event, HandlerAvailable) else kept(paused.cause)
    again = ThenDial(state.generation, count.after(paused.attempt), cause)
    if isinstance(state, Refusing | Leaving):
        return attrs.evolve(state, then=again), ()
    if isinstance(state, Waiting) and state.to_notify is not None:
        return notify_again(state, state.to_notify, count.after(state.notify_try))
    return enter(again, state.generation, None)


def _wait_out(state: State) -> Step:
    """Do not try sooner, since an event has brought the last try forward: what is parked waits for its backoff."""
    if isinstance(state, Parked):
        waiting = Waiting(state.generation, state.attempt, state.reason, state.info, cause=state.cause)
        return waiting, (StartTimer(state.attempt),)
    if isinstance(state, Refusing | Leaving) and isinstance(state.then, ThenPark):
        return attrs.evolve(state, then=ThenWait(state.then.reason, state.then.attempt, state.then.cause)), ()
    return state, ()


def _pause_of(paused: _Paused) -> _Pause:
    match paused:
        case Waiting(firm=True) | Parked(firm=True) | ThenWait(firm=True) | ThenPark(firm=True):
            return _Pause.FIRM
        case Waiting():
            return _Pause.BACKOFF if paused.to_notify is None else _Pause.NOTIFY_BACKOFF
        case ThenWait():
            return _Pause.LATER_BACKOFF
        case Stale():
            return _Pause.STALE
        case Parked() | ThenPark():
            return _Pause.PARKED if paused.until_type is None else _Pause.NO_HANDLER
    assert_never(paused)


def _is_for_another_type(event: _Trigger, paused: _Paused) -> bool:
    awaited = paused.until_type if isinstance(paused, Parked | ThenPark) else None
    return isinstance(event, HandlerAvailable) and event.type != awaited
