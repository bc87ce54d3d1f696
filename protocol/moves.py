"""The moves that several transitions of ``plugind.protocol.lifecycle`` share.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import assert_never

import attrs

from . import lives
from .plugins import PluginInfo
from .states import (
    AskDeregister,
    AskingInfo,
    Cause,
    Claiming,
    Command,
    Dial,
    Dialing,
    Gone,
    HangUp,
    Leaving,
    Notifying,
    Observed,
    Parked,
    Refusing,
    Registering,
    Release,
    Stale,
    StartTimer,
    State,
    Step,
    StopObserving,
    Then,
    ThenDial,
    ThenEnd,
    ThenPark,
    ThenWait,
    Validating,
    Waiting,
    pending_deregistration,
)


def kept(cause: Cause | None) -> Cause | None:
    """Return the cause with which the next try begins."""
    return Cause(cause.error, answered=True) if cause is not None and cause.answered else None


def abandon(state: State, then: Then, reason: str) -> Step:
    """Abandon what is under way in ``state``, deregister if a Register was asked, and go on to ``then``."""
    if _is_stopping(state):
        then = ThenEnd(stopped=True)
    if isinstance(state, Leaving):
        return attrs.evolve(state, then=then), ()
    pending = pending_deregistration(state)
    if pending is not None:
        return leave(state.generation, pending, reason, then)
    undo: tuple[Command, ...] = ()
    if isinstance(state, Dialing | AskingInfo | Claiming | Validating | Refusing):
        undo += (HangUp(),)
    if isinstance(state, Observed):
        undo += (StopObserving(), HangUp())
    if isinstance(state, Claiming | Validating):
        undo += (Release(state.generation),)
    after, commands = enter(then, state.generation, _info_of(state))
    return after, undo + commands


def _is_stopping(state: State) -> bool:
    """Return whether a stop was requested. After that no new attempt starts."""
    match state:
        case Registering() | Notifying():
            return state.stopping
        case Refusing() | Leaving():
            return isinstance(state.then, ThenEnd) and state.then.stopped
        case _:
            return False


def leave(generation: int, info: PluginInfo, reason: str, then: Then, cause: Cause | None = None) -> Step:
    """Ask the handler to deregister; afterwards do ``then``."""
    return Leaving(generation, info, reason, then, cause), (HangUp(), AskDeregister(info, generation))


def enter(then: Then, generation: int, info: PluginInfo | None) -> Step:
    """Do what ``then`` says. ``info`` is the info of the plugin of ``generation``, to be shown."""
    match then:
        case ThenDial() if then.not_before is not None:
            waiting = Waiting(then.generation, 0, lives.reason(then.short_lives), firm=True)
            return waiting, (StartTimer(then.short_lives, then.not_before),)
        case ThenDial():
            dialing = Dialing(then.generation, then.attempt, cause=then.cause)
            return dialing, (Dial(patient=then.attempt == 1),)
        case ThenWait():
            waiting = Waiting(generation, then.attempt, then.reason, info, cause=then.cause, firm=then.firm)
            return waiting, (StartTimer(then.attempt),)
        case ThenPark():
            return Parked(generation, then.attempt, then.reason, info, then.until_type, then.cause, then.firm), ()
        case ThenEnd():
            return Gone(generation, then.stopped), ()
    assert_never(then)


def _info_of(state: State) -> PluginInfo | None:
    match state:
        case Dialing() | AskingInfo() | Stale() | Gone():
            return None
        case _:
            return state.info


def try_again(generation: int, attempt: int, cause: Cause | None = None) -> Step:
    """Dial the socket of ``generation``, and go through the whole lifecycle."""
    return enter(ThenDial(generation, attempt, cause), generation, None)


def notify_again(state: Waiting, info: PluginInfo, notify_try: int) -> Step:
    """Dial the socket only to notify the plugin, which the handler has registered."""
    dialing = Dialing(state.generation, state.attempt, info, notify_try, kept(state.cause))
    return dialing, (Dial(patient=False, uid=info.uid),)
