"""What follows from the outcome of what a state waits for.

The half of ``plugind.protocol.lifecycle`` that is about calls: to the plugin, to the reconciler for a claim, to the
handler. The other half, there, is about messages that may come in any state.
"""

from __future__ import annotations

from typing import assert_never

from .errors import IllegalStepError
from .messages import Admitted, ClaimRefused, NoHandler
from .plugins import PluginInfo
from .states import (
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
    ThenEnd,
    ThenPark,
    ThenWait,
    TimerElapsed,
    Validating,
    Waiting,
)
from .transitions import enter, leave_off, try_again

#: Tries to tell a plugin of its registration, each on a new connection, before it is rolled back (fault 35).
NOTIFY_TRIES = 5
#: The outcome of a command, or the answer to a claim.
Answered = Outcome | Admitted | NoHandler | ClaimRefused

_VALIDATION_FAILED = "RegisterPlugin error -- plugin validation failed with err: "
_REGISTRATION_FAILED = "RegisterPlugin error -- plugin registration failed with err: "


def after_outcome(state: State, event: Answered) -> Step:
    """Return the state that follows when what ``state`` waits for ended like ``event``.

    Raises:
      IllegalStepError: if it waits for no such thing.
    """
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


def _after_dialing(state: Dialing, event: Answered) -> Step | None:
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


def _after_asking(state: AskingInfo, event: Answered) -> Step | None:
    match event:
        case InfoReceived():
            return Claiming(state.generation, state.attempt, event.info), (Claim(event.info),)
        case InfoRejected():
            return _refuse(state, None, _VALIDATION_FAILED + event.reason)
        case Failed():
            return _failed_before_info(state.generation, state.attempt, event)
        case _:
            return None


def _after_claiming(state: Claiming, event: Answered) -> Step | None:
    match event:
        case Admitted():
            return Validating(state.generation, state.attempt, state.info), (AskValidate(state.info),)
        case NoHandler():
            then = ThenPark(event.reason, state.attempt, until_type=state.info.type)
            return _refuse(state, state.info, event.reason, then)
        case ClaimRefused():
            return _refuse(state, state.info, _VALIDATION_FAILED + event.reason)
        case Failed():
            return leave_off(state, ThenWait(event.reason, state.attempt), event.reason)
        case _:
            return None


def _after_validating(state: Validating, event: Answered) -> Step | None:
    match event:
        case HandlerAccepted():
            return Registering(state.generation, state.attempt, state.info), (AskRegister(state.info),)
        case Failed():
            return _refuse(state, state.info, _VALIDATION_FAILED + event.reason)
        case _:
            return None


def _after_registering(state: Registering, event: Answered) -> Step | None:
    match event:
        case HandlerAccepted():
            notifying = Notifying(state.generation, state.attempt, state.info, 1, state.stopping)
            return notifying, (Announce(), Notify(None))
        case Failed():
            return _register_failed(state, event.reason)
        case _:
            return None


def _after_notifying(state: Notifying, event: Answered) -> Step | None:
    match event:
        case Notified() if state.stopping:
            return Gone(state.generation, stopped=True), (HangUp(),)
        case Notified():
            return Registered(state.generation, state.attempt, state.info), (HangUp(),)
        case Failed() if state.stopping:
            return leave_off(state, ThenEnd(stopped=True), event.reason)
        case Failed():
            return _notify_failed(state.generation, state.attempt, state.info, state.notify_try, event)
        case _:
            return None


def _after_waiting(state: Waiting | Stale) -> Step:
    if isinstance(state, Waiting) and state.owed is not None:
        return Dialing(state.generation, state.attempt, state.owed, state.notify_try + 1), (Dial(patient=False),)
    return try_again(state.generation, state.attempt + 1)


def _left(state: Leaving) -> Step:
    # A deregistration that failed was asked all the same: the state is clean (fault 84).
    after, commands = enter(state.then, state.generation, state.info)
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
    after, commands = enter(state.then, state.generation, state.info)
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
