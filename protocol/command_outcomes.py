"""What the outcome of a command does in the state that waits for it, for ``plugind.protocol.lifecycle``.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import assert_never

import attrs

from . import observing
from .errors import IllegalStepError
from .messages import Admitted, ClaimRefused, NoHandler
from .moves import abandon, enter, kept, leave, notify_again, try_again
from .plugins import PluginInfo
from .states import (
    Announce,
    AskInfo,
    AskingInfo,
    AskRegister,
    AskValidate,
    Cause,
    Claiming,
    ClaimName,
    Command,
    CommandOutcome,
    Dial,
    Dialed,
    Dialing,
    Failed,
    Gone,
    HandlerAccepted,
    HangUp,
    HeldUp,
    InfoDelayed,
    InfoObserved,
    InfoReceived,
    InfoRejected,
    Leaving,
    Notified,
    Notify,
    Notifying,
    Observed,
    Parked,
    PassTurn,
    Refusal,
    Refusing,
    Registered,
    Registering,
    Release,
    Replaced,
    ReportReplaced,
    Retry,
    Stale,
    StartTimer,
    State,
    Step,
    StopObserving,
    Then,
    ThenEnd,
    ThenPark,
    ThenWait,
    TimerElapsed,
    Validating,
    Waiting,
    cause_of,
)
from .status import Outcome

#: Tries to notify a plugin of its registration, each on a new connection, before the registration is rolled back
#: (fault 35).
NOTIFY_TRIES = 5

#: Why a registration waits whose dial found another file at the path.
REPLACED = "another socket took its place; the watcher looks again"

#: What a plugin has to do that announced itself by a call of Register, and was refused.
CALL_AGAIN = "the plugin has to call Register again"

_VALIDATION = "plugin validation failed"
_REGISTRATION = "plugin registration failed"

#: The outcome of a command, or the answer to a claim.
_Outcome = CommandOutcome | Admitted | NoHandler | ClaimRefused


def after_outcome(state: State, event: _Outcome) -> Step:
    """Return the step that follows when the operation of ``state`` ended with ``event``.

    Raises:
      IllegalStepError: if the operation of ``state`` has no such outcome.
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
            step = _after_refusing(state, event)
        case Waiting() | Stale():
            step = _after_waiting(state, event)
        case Leaving():
            step = _after_leaving(state, event)
        case Observed():
            step = _after_observing(state, event)
        case Parked() | Registered() | Gone():
            step = None
        case _:
            assert_never(state)
    if step is None:
        raise IllegalStepError(
            f"nothing follows {state}" if isinstance(state, Gone) else f"{event} cannot happen in {state}"
        )
    return step


# Each of the next functions returns None if the operation of the state has no such outcome.


def _after_dialing(state: Dialing, event: _Outcome) -> Step | None:
    to_notify = state.to_notify
    match event:
        case Dialed():
            if to_notify is None:
                return AskingInfo(state.generation, state.attempt, state.cause), (AskInfo(),)
            notify_try = state.notify_try
            notifying = Notifying(state.generation, state.attempt, to_notify, notify_try, cause=state.cause)
            return notifying, (Notify(None),)
        case Replaced():
            return _await_look(state)
        case HeldUp():
            patient, uid = state.attempt == 1 and to_notify is None, None if to_notify is None else to_notify.uid
            return attrs.evolve(state, held_up=event.reason), (Dial(patient, held_up=True, uid=uid),)
        case Failed():
            if to_notify is None:
                return _fail_before_info(state, event)
            return _fail_notify(state, to_notify, event)
        case _:
            return None


def _after_asking(state: AskingInfo, event: _Outcome) -> Step | None:
    match event:
        case InfoDelayed():
            return attrs.evolve(state, delayed=event.reason), ()
        case InfoReceived():
            return Claiming(state.generation, state.attempt, event.info, state.cause), (ClaimName(event.info),)
        case InfoObserved():
            return observing.observe(state, event.info)
        case InfoRejected() if event.silent:
            return observing.reject(state, event)
        case InfoRejected():
            return _fail_validation(state, None, event.reason)
        case Failed():
            return _fail_before_info(state, event)
        case _:
            return None


def _after_claiming(state: Claiming, event: _Outcome) -> Step | None:
    match event:
        case Admitted():
            return Validating(state.generation, state.attempt, state.info, state.cause), (AskValidate(state.info),)
        case NoHandler():
            cause = Cause(event.cause or event.reason, answered=True)
            park = ThenPark(event.reason, state.attempt, state.info.type, cause)
            return _refuse(state, state.info, event.reason, park, cause, cause.error)
        case ClaimRefused():
            return _fail_validation(state, state.info, event.reason)
        case Failed():
            then = _then_again(state.info, event.reason, event.reason, state.attempt, _cause(state, event))
            return abandon(state, then, event.reason)
        case _:
            return None


def _after_validating(state: Validating, event: _Outcome) -> Step | None:
    match event:
        case HandlerAccepted():
            registering = Registering(state.generation, state.attempt, state.info, cause=state.cause)
            return registering, (AskRegister(state.info),)
        case Failed():
            return _fail_validation(state, state.info, event.reason, event.cause, event.outcome)
        case _:
            return None


def _after_registering(state: Registering, event: _Outcome) -> Step | None:
    match event:
        case HandlerAccepted():
            notifying = Notifying(state.generation, state.attempt, state.info, 1, state.stopping)
            return notifying, (Announce(), Notify(None))
        case Failed():
            return _fail_register(state, event)
        case _:
            return None


def _after_notifying(state: Notifying, event: _Outcome) -> Step | None:
    match event:
        case Notified() if state.stopping:
            return Gone(state.generation, stopped=True), (HangUp(),)
        case Notified():
            return Registered(state.generation, state.attempt, state.info), (HangUp(),)
        case Failed() if state.stopping:
            return abandon(state, ThenEnd(stopped=True), event.reason)
        case Failed():
            return _fail_notify(state, state.info, event)
        case _:
            return None


def _after_refusing(state: Refusing, event: _Outcome) -> Step | None:
    # Whether the plugin got the message makes no difference (behaviour 32).
    if not isinstance(event, Notified | Failed):
        return None
    if state.to_deregister is not None:
        return leave(state.generation, state.to_deregister, state.error, state.then, state.cause)
    after, commands = enter(state.then, state.generation, state.info)
    return after, (HangUp(), *commands)


def _after_waiting(state: Waiting | Stale, event: _Outcome) -> Step | None:
    if not isinstance(event, TimerElapsed):
        return None
    if isinstance(state, Waiting) and state.to_notify is not None:
        return notify_again(state, state.to_notify, state.notify_try + 1)
    return try_again(state.generation, state.attempt + 1, kept(state.cause))


def _after_leaving(state: Leaving, event: _Outcome) -> Step | None:
    # A failed Deregister counts as done; it is not retried (fault 84).
    if not isinstance(event, HandlerAccepted | Failed):
        return None
    after, commands = enter(state.then, state.generation, state.info)
    return after, (Release(state.generation), *commands)


def _after_observing(state: Observed, event: _Outcome) -> Step | None:
    if not state.asking:
        return observing.ask_again(state) if isinstance(event, TimerElapsed) else None
    match event:
        case Dialed():
            return observing.ask_on(state)
        case HeldUp():
            return observing.dial_again(state)
        case InfoObserved():
            return observing.compare(state, event)
        case InfoRejected():
            return observing.reject(state, event)
        case Replaced():
            return _observe_no_more(*_await_look(_asked_again(state)))
        case Failed():
            return _observe_no_more(*_fail_before_info(_asked_again(state), event))
        case _:
            return None


def _asked_again(state: Observed) -> Dialing:
    """Return the state of a first try: one that an observed plugin does not answer counts as that."""
    return Dialing(state.generation, attempt=1)


def _observe_no_more(state: State, commands: tuple[Command, ...]) -> Step:
    return state, (StopObserving(), *commands)


def _await_look(state: Dialing) -> Step:
    """Wait until the watcher has looked at the path, where another file is (fault 41).

    No plugin was reached, so the try does not count, and the backoff does not change. A report of the watcher ends the
    wait. The timer, with the shortest delay, ends it if the socket of this generation is in its place again.
    """
    info, attempt, notify_try = state.to_notify, state.attempt, state.notify_try
    if info is None:
        attempt -= 1
    else:
        notify_try -= 1
    waiting = Waiting(state.generation, attempt, REPLACED, info, info, notify_try, state.cause)
    return waiting, (HangUp(), ReportReplaced(), StartTimer(1))


def _fail_before_info(state: Dialing | AskingInfo, failure: Failed) -> Step:
    """Handle a failed dial or GetInfo. The plugin cannot be notified of it."""
    generation, attempt, reason, cause = state.generation, state.attempt, failure.reason, _cause(state, failure)
    undo = (HangUp(), *_pass_turn(state))
    match failure.retry:
        case Retry.BACKOFF:
            return Waiting(generation, attempt, reason, cause=cause), (*undo, StartTimer(attempt))
        case Retry.STALE:
            return Stale(generation, attempt, reason, cause), (*undo, StartTimer(attempt))
        case Retry.NEVER:
            return Parked(generation, attempt, reason, cause=cause), undo
    assert_never(failure.retry)


def _pass_turn(state: Dialing | AskingInfo) -> tuple[Command, ...]:
    """Let the next plugin try for the name, if this one tries because the name is free: its try ends without a claim.

    If it was brought forward for another reason, it has no turn to pass, and the command does nothing.
    """
    return (PassTurn(),) if state.hurried else ()


def _fail_validation(
    state: AskingInfo | Claiming | Validating,
    info: PluginInfo | None,
    reason: str,
    words: str | None = None,
    outcome: Outcome = Outcome.REFUSED,
) -> Step:
    """Notify the plugin that it is not acceptable, and wait for the backoff or the next call."""
    error, cause = _refusal(_VALIDATION, reason, words)
    return _refuse(state, info, error, _then_again(info, error, reason, state.attempt, cause), cause, reason, outcome)


def _refuse(
    state: AskingInfo | Claiming | Validating,
    info: PluginInfo | None,
    error: str,
    then: Then,
    cause: Cause,
    reason: str,
    outcome: Outcome = Outcome.FAILED,
) -> Step:
    """Notify the plugin that it is not registered, and why; afterwards do ``then``.

    ``error`` is the ``reason`` in the words of the reference.
    """
    # Only a plugin that was admitted holds its claim. The reconciler has settled a claim that it refused.
    release: tuple[Command, ...] = (Release(state.generation),) if isinstance(state, Validating) else ()
    if isinstance(state, AskingInfo):
        release = _pass_turn(state)
    refusing = Refusing(state.generation, state.attempt, info, error, then, cause=cause)
    return refusing, (*release, _tell(info, error, reason, outcome))


def _tell(info: PluginInfo | None, error: str, reason: str, outcome: Outcome) -> Notify:
    """Return the notification of a refusal, or the answer to a plugin that called Register."""
    if info is None or not info.called:
        return Notify(error)
    return Notify(error, Refusal(reason, outcome))


def _then_again(info: PluginInfo | None, error: str, reason: str, attempt: int, cause: Cause) -> Then:
    """Return what follows a try that failed: the backoff, or the next call of a plugin that called Register."""
    if info is None or not info.called or info.answered:
        return ThenWait(error, attempt, cause)
    return ThenPark(f"{reason}: {CALL_AGAIN}", attempt, cause=cause)


def _refusal(what: str, reason: str, words: str | None) -> tuple[str, Cause]:
    """Return the message of the reference for the plugin, and the cause for users.

    ``words`` are the few ones for ``reason``, if there are such.
    """
    cause = Cause(f"{what}: {reason if words is None else words}", answered=True)
    return f"RegisterPlugin error -- {what} with err: {reason}", cause


def _cause(state: State, failure: Failed) -> Cause:
    """Return the cause once ``failure`` ended a try: what the plugin answered or was told before counts for more."""
    before, error = cause_of(state), failure.cause or failure.reason
    if before is None or failure.answered:
        return Cause(error, failure.answered)
    return Cause(before.error, answered=True, now=error)


def _fail_register(state: Registering, failure: Failed) -> Step:
    """Notify the plugin (behaviour 31), and undo the Register that was attempted (behaviour 36)."""
    info, reason = state.info, failure.reason
    error, cause = _refusal(_REGISTRATION, reason, failure.cause)
    then = ThenEnd(stopped=True) if state.stopping else _then_again(info, error, reason, state.attempt, cause)
    # A handler that refuses to register could not do what the plugin asked for: the call itself was in order.
    outcome = Outcome.TIMED_OUT if failure.outcome is Outcome.TIMED_OUT else Outcome.FAILED
    refusing = Refusing(state.generation, state.attempt, info, error, then, info, cause)
    return refusing, (_tell(info, error, reason, outcome),)


def _fail_notify(state: Dialing | Notifying, info: PluginInfo, failure: Failed) -> Step:
    """Notify again, on a new connection, and nothing else (behaviour 33).

    The second try is made at once (fault 36), the others by backoff, and after the last the registration is rolled back
    (fault 35). A plugin that does not implement the call would fail each try: it is rolled back and parked (fault 71).
    """
    reason, tries, cause = failure.reason, state.notify_try, _cause(state, failure)
    if failure.retry is Retry.NEVER:
        return leave(state.generation, info, reason, ThenPark(reason, state.attempt, cause=cause), cause)
    if tries >= NOTIFY_TRIES:
        return leave(state.generation, info, reason, ThenWait(reason, state.attempt, cause), cause)
    waiting = Waiting(state.generation, state.attempt, reason, info, info, tries, cause)
    if tries == 1:
        again, commands = notify_again(waiting, info, tries + 1)
        return again, (HangUp(), *commands)
    return waiting, (HangUp(), StartTimer(tries - 1))
