"""How the lifecycle of a socket goes on from one state to another, whatever it was that happened.

``plugind.protocol.lifecycle`` says which of these follows from what.
"""

from __future__ import annotations

from typing import assert_never

import attrs

from .errors import IllegalStepError
from .plugins import PluginInfo
from .states import (
    AskDeregister,
    AskingInfo,
    Claiming,
    Command,
    Dial,
    Dialing,
    Gone,
    HangUp,
    Leaving,
    Notifying,
    Parked,
    Refusing,
    Registering,
    Release,
    Stale,
    StartTimer,
    State,
    Step,
    Then,
    ThenDial,
    ThenEnd,
    ThenPark,
    ThenWait,
    Validating,
    Waiting,
    owed_by,
)


def leave_off(state: State, then: Then, reason: str) -> Step:
    """Leave off whatever ``state`` is about, settle what it owes, and go on to ``then``."""
    if isinstance(state, Gone):
        raise IllegalStepError(f"nothing follows {state}")
    if _stops(state):
        then = ThenEnd(stopped=True)
    if isinstance(state, Leaving):
        return attrs.evolve(state, then=then), ()
    owed = owed_by(state)
    if owed is not None:
        leaving = Leaving(state.generation, owed, reason, then)
        return leaving, (HangUp(), AskDeregister(owed, state.generation))
    settle: tuple[Command, ...] = ()
    if isinstance(state, Dialing | AskingInfo | Claiming | Validating | Refusing):
        settle += (HangUp(),)
    if isinstance(state, Claiming | Validating):
        settle += (Release(state.generation),)
    after, commands = enter(then, state.generation, _info_of(state))
    return after, settle + commands


def _stops(state: State) -> bool:
    """Whether a stop was asked: whatever else happens then, nothing begins anew."""
    match state:
        case Registering() | Notifying():
            return state.stopping
        case Refusing() | Leaving():
            return isinstance(state.then, ThenEnd) and state.then.stopped
        case _:
            return False


def enter(then: Then, generation: int, info: PluginInfo | None) -> Step:
    """Go where ``then`` says; ``info`` is what the plugin of ``generation`` said of itself, to be shown."""
    match then:
        case ThenDial():
            return Dialing(then.generation, then.attempt), (Dial(patient=then.attempt == 1),)
        case ThenWait():
            return Waiting(generation, then.attempt, then.reason, info), (StartTimer(then.attempt),)
        case ThenPark():
            return Parked(generation, then.attempt, then.reason, info, then.until_type), ()
        case ThenEnd():
            return Gone(generation, then.stopped), ()
    assert_never(then)


def _info_of(state: State) -> PluginInfo | None:
    match state:
        case Dialing() | AskingInfo() | Stale() | Gone():
            return None
        case _:
            return state.info


def try_again(generation: int, attempt: int) -> Step:
    """Dial the same socket once more."""
    return enter(ThenDial(generation, attempt), generation, None)
