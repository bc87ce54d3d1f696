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

from plugind.protocol.errors import IllegalStepError
from plugind.protocol.messages import (
    Admitted,
    ClaimRefused,
    HandlerAvailable,
    HandlerWithdrawn,
    NameFreed,
    NoHandler,
    RegistrationMessage,
    SocketAppeared,
    SocketTouched,
    SocketVanished,
    StopAsked,
    StopForced,
    TryNow,
)
from plugind.protocol.plugins import PluginInfo
from plugind.protocol.states import (
    Announce,
    AskDeregister,
    AskInfo,
    AskingInfo,
    AskRegister,
    AskValidate,
    Claim,
    Claiming,
    Command,
    Dial,
    Dialed,
    Dialing,
    Event,
    Failed,
    Gone,
    HandlerAccepted,
    HangUp,
    InfoReceived,
    InfoRejected,
    Leaving,
    Notified,
    Notify,
    Notifying,
    Outcome,
    Parked,
    Refusing,
    Registered,
    Registering,
    Release,
    Retry,
    Stale,
    StartTimer,
    State,
    Step,
    Then,
    ThenDial,
    ThenEnd,
    ThenPark,
    ThenWait,
    TimerElapsed,
    Validating,
    Waiting,
    owed_by,
)

#: Tries to tell a plugin of its registration, each on a new connection, before it is rolled back (fault 35).
NOTIFY_TRIES = 5


def start(message: SocketAppeared) -> Step:
    """Return the first step of a new actor for the socket that appeared."""
    return _enter(ThenDial(message.generation), message.generation, None)


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
            return _go(state, ThenDial(event.generation), "a newer socket is in its place")
        case SocketVanished():
            return _go(state, ThenEnd(), "the socket was removed")
        case StopAsked() | StopForced():
            return _stop(state, event)
        case HandlerWithdrawn():
            return _withdrawn(state, event.type)
        case SocketTouched() | NameFreed() | TryNow() | HandlerAvailable():
            return _nudged(state, event)
        case _:
            return _outcome(state, event)


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


def _go(state: State, then: Then, reason: str) -> Step:
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
    after, commands = _enter(then, state.generation, _info_of(state))
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


def _enter(then: Then, generation: int, info: PluginInfo | None) -> Step:
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


def _stop(state: State, event: StopAsked | StopForced) -> Step:
    """Behaviour 42: what is in flight ends, what is registered stays so unless asked otherwise (fault 87)."""
    deregister = isinstance(event, StopAsked) and event.deregister
    if isinstance(state, Registered) and not deregister:
        return Gone(state.generation, stopped=True), ()
    if isinstance(state, Registering | Notifying) and event == StopAsked():
        return attrs.evolve(state, stopping=True), ()
    return _go(state, ThenEnd(stopped=True), "plugind stops")


def _withdrawn(state: State, plugin_type: str) -> Step:
    """The handler leaves: what it has is deregistered, what was on its way to it starts over, and will be parked."""
    if isinstance(state, Gone):
        raise IllegalStepError(f"nothing follows {state}")
    owed = owed_by(state)
    held = state.info if isinstance(state, Claiming | Validating) else owed
    if held is None or held.type != plugin_type or isinstance(state, Refusing):
        return state, ()
    return _go(state, ThenDial(state.generation), f"the handler for {plugin_type} was removed")


def _nudged(state: State, event: SocketTouched | NameFreed | TryNow | HandlerAvailable) -> Step:
    match state:
        case Waiting(owed=None) if not isinstance(event, HandlerAvailable):
            return _again(state.generation, 1 if isinstance(event, TryNow) else state.attempt + 1)
        case Waiting(owed=owed) if isinstance(event, TryNow | SocketTouched):
            notify_try = 1 if isinstance(event, TryNow) else state.notify_try + 1
            return Dialing(state.generation, state.attempt, owed, notify_try), (Dial(patient=False),)
        case Stale() if isinstance(event, TryNow | SocketTouched):
            return _again(state.generation, 1 if isinstance(event, TryNow) else state.attempt + 1)
        case Parked() if _unparks(state.until_type, event):
            return _again(state.generation, 1)
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


def _again(generation: int, attempt: int) -> Step:
    return _enter(ThenDial(generation, attempt), generation, None)


_Outcome = Outcome | Admitted | NoHandler | ClaimRefused

_VALIDATION_FAILED = "RegisterPlugin error -- plugin validation failed with err: "
_REGISTRATION_FAILED = "RegisterPlugin error -- plugin registration failed with err: "


def _outcome(state: State, event: _Outcome) -> Step:
    match state:
        case Dialing():
            step = _after_dialing(state, event)
        case AskingInfo():
            step = _after_asking(state, event)
        case Claiming():
            step = _after_claiming(state, event)
        case Validating():
            step = _after_validating(state, event)
        case Registering():
            step = _after_registering(state, event)
        case Notifying():
            step = _after_notifying(state, event)
        case Refusing():
            step = _refused(state) if isinstance(event, Notified | Failed) else None
        case Waiting() | Stale():
            step = _after_waiting(state) if isinstance(event, TimerElapsed) else None
        case Leaving():
            step = _left(state) if isinstance(event, HandlerAccepted | Failed) else None
        case Parked() | Registered() | Gone():
            step = None
        case _:
            assert_never(state)
    if step is None:
        raise IllegalStepError(f"{event} cannot happen in {state}")
    return step


# Of what follows, each takes the outcome of what its state waits for; None if it waits for no such thing.


def _after_dialing(state: Dialing, event: _Outcome) -> Step | None:
    owed = state.owed
    match event:
        case Dialed():
            if owed is None:
                return AskingInfo(state.generation, state.attempt), (AskInfo(),)
            return Notifying(state.generation, state.attempt, owed, state.notify_try), (Notify(None),)
        case Failed():
            if owed is None:
                return _failed_before_info(state.generation, state.attempt, event)
            return _notify_failed(state.generation, state.attempt, owed, state.notify_try, event)
        case _:
            return None


def _after_asking(state: AskingInfo, event: _Outcome) -> Step | None:
    match event:
        case InfoReceived():
            return Claiming(state.generation, state.attempt, event.info), (Claim(event.info),)
        case InfoRejected():
            return _refuse(state, None, _VALIDATION_FAILED + event.reason)
        case Failed():
            return _failed_before_info(state.generation, state.attempt, event)
        case _:
            return None


def _after_claiming(state: Claiming, event: _Outcome) -> Step | None:
    match event:
        case Admitted():
            return Validating(state.generation, state.attempt, state.info), (AskValidate(state.info),)
        case NoHandler():
            then = ThenPark(event.reason, state.attempt, until_type=state.info.type)
            return _refuse(state, state.info, event.reason, then)
        case ClaimRefused():
            return _refuse(state, state.info, _VALIDATION_FAILED + event.reason)
        case Failed():
            return _go(state, ThenWait(event.reason, state.attempt), event.reason)
        case _:
            return None


def _after_validating(state: Validating, event: _Outcome) -> Step | None:
    match event:
        case HandlerAccepted():
            return Registering(state.generation, state.attempt, state.info), (AskRegister(state.info),)
        case Failed():
            return _refuse(state, state.info, _VALIDATION_FAILED + event.reason)
        case _:
            return None


def _after_registering(state: Registering, event: _Outcome) -> Step | None:
    match event:
        case HandlerAccepted():
            notifying = Notifying(state.generation, state.attempt, state.info, 1, state.stopping)
            return notifying, (Announce(), Notify(None))
        case Failed():
            return _register_failed(state, event.reason)
        case _:
            return None


def _after_notifying(state: Notifying, event: _Outcome) -> Step | None:
    match event:
        case Notified() if state.stopping:
            return Gone(state.generation, stopped=True), (HangUp(),)
        case Notified():
            return Registered(state.generation, state.attempt, state.info), (HangUp(),)
        case Failed() if state.stopping:
            return _go(state, ThenEnd(stopped=True), event.reason)
        case Failed():
            return _notify_failed(state.generation, state.attempt, state.info, state.notify_try, event)
        case _:
            return None


def _after_waiting(state: Waiting | Stale) -> Step:
    if isinstance(state, Waiting) and state.owed is not None:
        return Dialing(state.generation, state.attempt, state.owed, state.notify_try + 1), (Dial(patient=False),)
    return _again(state.generation, state.attempt + 1)


def _left(state: Leaving) -> Step:
    # A deregistration that failed was asked all the same: the state is clean (fault 84).
    after, commands = _enter(state.then, state.generation, state.info)
    return after, (Release(state.generation), *commands)


def _failed_before_info(generation: int, attempt: int, failure: Failed) -> Step:
    match failure.retry:
        case Retry.BACKOFF:
            return Waiting(generation, attempt, failure.reason), (HangUp(), StartTimer(attempt))
        case Retry.STALE:
            return Stale(generation, attempt, failure.reason), (HangUp(), StartTimer(attempt))
        case Retry.NEVER:
            return Parked(generation, attempt, failure.reason), (HangUp(),)
    assert_never(failure.retry)


def _refuse(
    state: AskingInfo | Claiming | Validating, info: PluginInfo | None, error: str, then: Then | None = None
) -> Step:
    # Only who is validated holds a claim: one that was turned away or refused is settled by that.
    settle: tuple[Command, ...] = (Release(state.generation),) if isinstance(state, Validating) else ()
    refusing = Refusing(state.generation, state.attempt, info, error, then or ThenWait(error, state.attempt))
    return refusing, (*settle, Notify(error))


def _register_failed(state: Registering, reason: str) -> Step:
    """Behaviour 31: the plugin is told; behaviour 36: a Register that was attempted is undone."""
    error = _REGISTRATION_FAILED + reason
    then = ThenEnd(stopped=True) if state.stopping else ThenWait(error, state.attempt)
    return Refusing(state.generation, state.attempt, state.info, error, then, state.info), (Notify(error),)


def _refused(state: Refusing) -> Step:
    if state.owed is not None:
        leaving = Leaving(state.generation, state.owed, state.error, state.then)
        return leaving, (HangUp(), AskDeregister(state.owed, state.generation))
    after, commands = _enter(state.then, state.generation, state.info)
    return after, (HangUp(), *commands)


def _notify_failed(generation: int, attempt: int, owed: PluginInfo, tries: int, failure: Failed) -> Step:
    """Behaviour 33: the notify alone is tried again, at once the first time (fault 36), then by backoff (fault 35).

    A plugin that does not know the call will not learn it: it is let go and parked (fault 71).
    """
    reason = failure.reason
    if failure.retry is Retry.NEVER or tries >= NOTIFY_TRIES:
        then = ThenPark(reason, attempt) if failure.retry is Retry.NEVER else ThenWait(reason, attempt)
        return Leaving(generation, owed, reason, then), (HangUp(), AskDeregister(owed, generation))
    if tries == 1:
        return Dialing(generation, attempt, owed, tries + 1), (HangUp(), Dial(patient=False))
    waiting = Waiting(generation, attempt, reason, owed, owed, tries)
    return waiting, (HangUp(), StartTimer(tries - 1))
