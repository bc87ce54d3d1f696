"""The lifecycle of one socket's registration, as a pure machine.

Theory of operation. A registration actor holds one state of this machine. What happens to it is an event: a message
from its inbox, or the outcome of a command that it performed. :func:`step` answers with the next state and the
commands to perform, in order. At most the last of them waits (:data:`Waiting commands <WaitingCommand>`); its outcome,
or a message that came first, is the next event. Everything that decides a transition is here; nothing here waits, logs
or reads a clock.

The way of a plugin that does all well::

    Dialing ─Dialed→ AskingInfo ─InfoReceived→ Claiming ─Admitted→ Validating
        ─HandlerAccepted→ Registering ─HandlerAccepted→ Notifying ─Notified→ Registered

and the ways off it:

- a failure before Register:    Notifying(no), where the plugin is to be told, then Waiting, Parked or Stale
- a failed Register:            Notifying(no), then Leaving (Register was attempted, so it is undone), then Waiting
- a failed Notify of success:   Dialing again, by backoff, to notify alone (behaviour 33); given up, Leaving, Waiting
- the socket is gone:           Gone, through Leaving if a Register was asked
- a newer socket in its place:  Dialing anew, through Leaving if a Register was asked; its backoff starts fresh

A state that still owes a deregistration says so through :func:`owed_by`; ``Gone`` owes nothing.
"""

from __future__ import annotations

from typing import assert_never

import attrs

from .errors import IllegalStepError
from .messages import (
    HandlerAvailable,
    HandlerWithdrawn,
    NameFreed,
    RegistrationMessage,
    SocketAppeared,
    SocketTouched,
    SocketVanished,
    StopAsked,
    StopForced,
    TryNow,
)
from .outcomes import after_outcome
from .plugins import PluginInfo
from .states import (
    AskDeregister,
    Claiming,
    Dial,
    Dialing,
    Event,
    Gone,
    Leaving,
    Notifying,
    Parked,
    Refusing,
    Registered,
    Registering,
    Stale,
    State,
    Step,
    ThenDial,
    ThenEnd,
    ThenPark,
    ThenWait,
    Validating,
    Waiting,
    owed_by,
)
from .transitions import enter, leave_off, try_again


def start(message: SocketAppeared) -> Step:
    """Return the first step of a new actor for the socket that appeared."""
    return enter(ThenDial(message.generation), message.generation, None)


def resume(message: SocketAppeared, owed: PluginInfo, generation: int) -> Step:
    """Return the first step of an actor whose predecessor crashed and left a deregistration owed (fault 85)."""
    return Leaving(generation, owed, "its actor crashed", ThenDial(message.generation)), (
        AskDeregister(owed, generation),
    )


def step(state: State, event: Event) -> Step:
    """Return the state that follows ``state`` upon ``event``, and the commands to perform on the way.

    No commands and an equal state mean that the event changes nothing: whatever is waited for is waited for on.

    Raises:
      IllegalStepError: if the event cannot happen in that state.
    """
    match event:
        case SocketAppeared():
            return leave_off(state, ThenDial(event.generation), "a newer socket is in its place")
        case SocketVanished():
            return leave_off(state, ThenEnd(), "the socket was removed")
        case StopAsked() | StopForced():
            return _stop(state, event)
        case HandlerWithdrawn():
            return _withdrawn(state, event.type)
        case SocketTouched() | NameFreed() | TryNow() | HandlerAvailable():
            return _nudged(state, event)
        case _:
            return after_outcome(state, event)


def interrupts(state: State, message: RegistrationMessage) -> bool:
    """Whether ``message`` ends the call that is under way in ``state``, rather than wait until it is over."""
    match message:
        case SocketAppeared() | SocketVanished() | StopForced():
            return True
        case StopAsked():
            return message.deregister or not isinstance(state, Notifying)
        case HandlerWithdrawn():
            owed = owed_by(state)
            return owed is not None and owed.type == message.type and not isinstance(state, Refusing)
        case _:
            return False


def _stop(state: State, event: StopAsked | StopForced) -> Step:
    """Behaviour 42: what is in flight ends, what is registered stays so unless asked otherwise (fault 87)."""
    deregister = isinstance(event, StopAsked) and event.deregister
    if isinstance(state, Registered) and not deregister:
        return Gone(state.generation, stopped=True), ()
    if isinstance(state, Registering | Notifying) and event == StopAsked():
        return attrs.evolve(state, stopping=True), ()
    return leave_off(state, ThenEnd(stopped=True), "plugind stops")


def _withdrawn(state: State, plugin_type: str) -> Step:
    """The handler leaves: what it has is deregistered, what was on its way to it starts over, and will be parked."""
    if isinstance(state, Gone):
        raise IllegalStepError(f"nothing follows {state}")
    owed = owed_by(state)
    held = state.info if isinstance(state, Claiming | Validating) else owed
    if held is None or held.type != plugin_type or isinstance(state, Refusing):
        return state, ()
    return leave_off(state, ThenDial(state.generation), f"the handler for {plugin_type} was removed")


def _nudged(state: State, event: SocketTouched | NameFreed | TryNow | HandlerAvailable) -> Step:
    match state:
        case Waiting(owed=None) if not isinstance(event, HandlerAvailable):
            return try_again(state.generation, 1 if isinstance(event, TryNow) else state.attempt + 1)
        case Waiting(owed=owed) if isinstance(event, TryNow | SocketTouched):
            notify_try = 1 if isinstance(event, TryNow) else state.notify_try + 1
            return Dialing(state.generation, state.attempt, owed, notify_try), (Dial(patient=False),)
        case Stale() if isinstance(event, TryNow | SocketTouched):
            return try_again(state.generation, 1 if isinstance(event, TryNow) else state.attempt + 1)
        case Parked() if _unparks(state.until_type, event):
            return try_again(state.generation, 1)
        case Refusing(then=ThenPark() as park) | Leaving(then=ThenPark() as park) if _unparks(park.until_type, event):
            return attrs.evolve(state, then=ThenDial(state.generation)), ()
        case Refusing(then=ThenWait() as wait) | Leaving(then=ThenWait() as wait) if isinstance(
            event, TryNow | NameFreed
        ):
            attempt = 1 if isinstance(event, TryNow) else wait.attempt + 1
            return attrs.evolve(state, then=ThenDial(state.generation, attempt)), ()
        case Gone():
            raise IllegalStepError(f"nothing follows {state}")
        case _:
            return state, ()


def _unparks(until_type: str | None, event: SocketTouched | NameFreed | TryNow | HandlerAvailable) -> bool:
    match event:
        case TryNow():
            return True
        case HandlerAvailable():
            return event.type == until_type
        case SocketTouched():
            return until_type is None
        case NameFreed():
            return False
    assert_never(event)
