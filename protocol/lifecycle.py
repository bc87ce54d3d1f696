"""The lifecycle of one socket's registration, as a pure state machine.

Rules of this file
  Everything that decides a transition is here. The values that it uses (states, events, commands) are in
  ``plugind.protocol.states`` and ``plugind.protocol.messages``. Nothing here waits, logs or reads a clock.

Theory of operation
  A registration actor (``plugind.actors.registration``) holds one *state*. Each thing that happens to it is an *event*:
  a message from its inbox, or the outcome of a command that it performed. :func:`step` takes the state and the event
  and returns the next state and the *commands* to perform, in order. At most the last command is a
  :data:`~plugind.protocol.states.WaitingCommand`, which has an outcome. The next event is that outcome, or a message
  from the inbox. While a call to the plugin is under way, only a message that :func:`interrupts` it comes before its
  outcome.

  A plugin without faults takes this path::

      Dialing ─Dialed→ AskingInfo ─InfoReceived→ Claiming ─Admitted→ Validating
          ─HandlerAccepted→ Registering ─HandlerAccepted→ Notifying ─Notified→ Registered

  It leaves the path in these ways:

  - This process cannot dial because it has no descriptors left: Dialing again, which waits for some (fault 46).
  - A dial or GetInfo fails: Waiting, Stale or Parked. The plugin cannot be notified.
  - The dial finds another socket at the path: Waiting for the watcher, which is asked to look there and reports that
    the socket appeared, or vanished. The try does not count. If no report comes, a timer ends the wait (fault 41).
  - The info is bad, the claim is refused, or Validate fails: Refusing, then Waiting; Parked if the type has no handler.
    If the claim is not answered in time: Waiting at once.
  - Register fails: Refusing, then Leaving (Register was attempted, so Deregister follows), then Waiting.
  - The notification of success fails: Dialing only to notify (behaviour 33), the second try at once and the others
    after Waiting by backoff. After the last try: Leaving, then Waiting. If no try can succeed: Leaving, then Parked.
  - The socket is removed: Gone. If Register was asked, Leaving comes first.
  - Another socket replaces it: Dialing, with a fresh backoff. If Register was asked, Leaving comes first. If the last
    lives at the path were short: Waiting comes before Dialing (fault 49).
  - The handler is removed: Dialing, after Leaving if Register was asked. The next claim then finds no handler.
  - Nobody listens on the socket of a registered plugin, and the configuration says to deregister it then: Leaving, then
    Dialing, which leads to Stale.
  - A plugin that announced itself by a call of Register is refused, or nobody listens on its socket: Parked, where the
    paths above have Waiting. Its next call is another socket's appearance, with a new generation.
  - Somebody listens on a stale socket again: Dialing, with a fresh backoff.
  - The socket is touched, or its name is free: a wait ends, once in each step of the backoff (``pace.py``).
  - The actor crashes, by a bug in plugind: its successor leaves, if Register was asked, and then waits out a backoff of
    its own. After five crashes in a row: Parked. Only a retry that is requested, or another socket, ends such a wait
    sooner (fault 85).
  - plugind stops: Gone. A registered plugin stays registered, unless the stop deregisters. A Register or a notification
    under way may finish, unless the stop deregisters or is forced (behaviour 42, fault 87).

  Two invariants hold. Each Register that was asked is followed by exactly one Deregister before the next Register
  (behaviour 36), except that each successor of an actor that crashed may ask for one more Deregister. After a stop
  request no new attempt starts (behaviour 42).

  A deregistration is *pending* from the moment Register is asked until Deregister is: in Registering, Notifying and
  Registered, in Dialing and Waiting to notify, and in Refusing after a Register that failed. It is not pending in
  Leaving, where it is in progress. :func:`~plugind.protocol.states.pending_deregistration` returns its plugin, and
  decides whether a way out of a state leads through Leaving.

Order of this file
  The entry points; what messages do; what the outcome of a command does in the state that waits for it, in the order of
  the path above; the moves that several of these share.

docs/design.md has the whole table of transitions, and describes what happens when a registered plugin's socket is
replaced.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import enum
from typing import assert_never

import attrs

from . import lives
from .crashes import Crash
from .errors import IllegalStepError
from .messages import (
    Admitted,
    ClaimRefused,
    HandlerAvailable,
    HandlerWithdrawn,
    ListenerFound,
    ListenerLost,
    NameFreed,
    NoHandler,
    RegistrationMessage,
    RetryAnswer,
    SocketAppeared,
    SocketTouched,
    SocketVanished,
    StopAsked,
    StopForced,
    TryNow,
)
from .pace import Hurrying, is_hurried, paced
from .plugins import PluginInfo
from .states import (
    Announce,
    AskDeregister,
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
    Event,
    Failed,
    Gone,
    HandlerAccepted,
    HangUp,
    HeldUp,
    InfoReceived,
    InfoRejected,
    Leaving,
    Notified,
    Notify,
    Notifying,
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
    Then,
    ThenDial,
    ThenEnd,
    ThenPark,
    ThenWait,
    TimerElapsed,
    Validating,
    Waiting,
    cause_of,
    name_of,
    pending_deregistration,
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


# --- entry points -----------------------------------------------------------------------------------------------------


def start(message: SocketAppeared, crash: Crash | None = None) -> Step:
    """Return the first step of a new actor for the socket that appeared; its predecessor may have ended in a crash."""
    return _enter(_first(message, crash), message.generation, None)


def resume(message: SocketAppeared, info: PluginInfo, generation: int, crash: Crash) -> Step:
    """Return the first step of an actor whose predecessor crashed with a deregistration pending (fault 85)."""
    # A socket that has appeared since has nothing to do with the crash.
    then = _first(message, crash if message.generation == generation else None)
    return Leaving(generation, info, "its actor crashed", then), (AskDeregister(info, generation),)


def _first(message: SocketAppeared, crash: Crash | None) -> Then:
    if crash is None:
        return ThenDial(message.generation, 1, not_before=message.not_before, short_lives=message.short_lives)
    if crash.parks:
        return ThenPark(crash.reason, crash.count, firm=True)
    return ThenWait(crash.reason, crash.count, firm=True)


def step(state: State, event: Event) -> Step:
    """Return the state that follows ``state`` upon ``event``, and the commands to perform on the way.

    No commands and an equal state mean that the event changes nothing: the operation under way goes on.

    Raises:
      IllegalStepError: if the event cannot happen in that state.
    """
    after, commands = _step(state, event)
    return paced(state, event, after), commands


def _step(state: State, event: Event) -> Step:
    if isinstance(state, Gone):
        raise IllegalStepError(f"nothing follows {state}")
    match event:
        case SocketAppeared():
            return _abandon(state, _first(event, None), "a newer socket is in its place")
        case SocketVanished():
            return _abandon(state, ThenEnd(), event.reason)
        case StopAsked() | StopForced():
            return _stop(state, event)
        case HandlerWithdrawn():
            return _lose_handler(state, event.type)
        case ListenerLost():
            return _lose_listener(state, event)
        case SocketTouched() | NameFreed() | TryNow() | HandlerAvailable() | ListenerFound():
            return _retrigger(state, event)
        case _:
            return _after_outcome(state, event)


def interrupts(state: State, message: RegistrationMessage) -> bool:
    """Return whether ``message`` ends the call to the plugin that is under way in ``state``.

    Any other message waits in the inbox until the call is over.
    """
    match message:
        case SocketAppeared() | SocketVanished() | StopForced():
            return True
        case StopAsked():
            return message.deregister or not isinstance(state, Notifying)
        case HandlerWithdrawn():
            pending = pending_deregistration(state)
            return pending is not None and pending.type == message.type and not isinstance(state, Refusing)
        case _:
            return False


def answer_to_retry(socket: str, state: State) -> RetryAnswer:
    """Return what a caller is told who asks for a retry of ``socket`` in ``state``: what :func:`step` makes of it."""
    tried, why = True, f"an attempt is under way: {name_of(state)}"
    match state:
        case Waiting() | Stale() | Parked():
            why = "tried now"
        case Registered():
            tried, why = False, "registered already, nothing to retry"
        case Gone() | Refusing(then=ThenEnd()) | Leaving(then=ThenEnd()):
            tried, why = False, "it is leaving: plugind stops, or its socket was removed"
        case Leaving():
            why = "it is being deregistered, and tried right after that"
        case Refusing():
            why = "it is being notified of a failed attempt, and tried right after that"
        case Dialing() | AskingInfo() | Claiming() | Validating() | Registering() | Notifying():
            pass
        case _:
            assert_never(state)
    return RetryAnswer(socket, tried, why)


# --- messages ---------------------------------------------------------------------------------------------------------


def _stop(state: State, event: StopAsked | StopForced) -> Step:
    """Let a Register or a notification finish; a registered plugin stays registered (behaviour 42).

    A stop that deregisters, and one that is forced (fault 87), let nothing finish.
    """
    deregister = isinstance(event, StopAsked) and event.deregister
    if isinstance(state, Registered) and not deregister:
        return Gone(state.generation, stopped=True), ()
    if isinstance(state, Registering | Notifying) and event == StopAsked():
        return attrs.evolve(state, stopping=True), ()
    anew = isinstance(event, StopAsked) and event.anew
    return _abandon(state, ThenEnd(stopped=True), "plugind starts anew" if anew else "plugind stops")


def _lose_handler(state: State, plugin_type: str) -> Step:
    """Deregister a plugin that the removed handler has, and start over with one that was on its way to it.

    The plugin is dialed again at once. Its claim then finds no handler, and it is parked.
    """
    info = state.info if isinstance(state, Claiming | Validating) else pending_deregistration(state)
    if info is None or info.type != plugin_type or isinstance(state, Refusing):
        return state, ()
    then = ThenDial(state.generation, 1, _kept(cause_of(state)))
    return _abandon(state, then, f"the handler for {plugin_type} was removed")


def _lose_listener(state: State, event: ListenerLost) -> Step:
    """Deregister a plugin on whose socket nobody listens, and dial it: it is stale then, until somebody listens."""
    if not isinstance(state, Registered) or event.generation != state.generation:
        return state, ()
    if state.info.called:  # Without a call there is nothing that a dial could find out.
        return _abandon(state, ThenPark(f"{event.reason}: {CALL_AGAIN}", state.attempt), event.reason)
    return _abandon(state, ThenDial(state.generation, attempt=1), event.reason)


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


def _retrigger(state: State, event: _Trigger) -> Step:
    """Try sooner than planned, if ``event`` is a reason to do so."""
    if isinstance(event, TryNow) and isinstance(state, Refusing | Leaving) and isinstance(state.then, ThenDial):
        return attrs.evolve(state, then=attrs.evolve(state.then, not_before=None, short_lives=0)), ()
    paused = state.then if isinstance(state, Refusing | Leaving) else state
    if not isinstance(paused, _Paused) or _is_for_another_type(event, paused):
        return state, ()
    count = _RETRIGGERS.get((_pause_of(paused), type(event)))
    if count is None:
        return state, ()
    if isinstance(event, Hurrying) and is_hurried(state):
        return _wait_out(state)
    # Once there is a handler, its absence is no cause any more.
    cause = None if isinstance(event, HandlerAvailable) else _kept(paused.cause)
    again = ThenDial(state.generation, count.after(paused.attempt), cause)
    if isinstance(state, Refusing | Leaving):
        return attrs.evolve(state, then=again), ()
    if isinstance(state, Waiting) and state.to_notify is not None:
        return _notify_again(state, state.to_notify, count.after(state.notify_try))
    return _enter(again, state.generation, None)


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


# --- outcomes ---------------------------------------------------------------------------------------------------------

#: The outcome of a command, or the answer to a claim.
_Outcome = CommandOutcome | Admitted | NoHandler | ClaimRefused


def _after_outcome(state: State, event: _Outcome) -> Step:
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
        case Parked() | Registered() | Gone():
            step = None
        case _:
            assert_never(state)
    if step is None:
        raise IllegalStepError(f"{event} cannot happen in {state}")
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
        case InfoReceived():
            return Claiming(state.generation, state.attempt, event.info, state.cause), (ClaimName(event.info),)
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
            return _abandon(state, then, event.reason)
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
            return _abandon(state, ThenEnd(stopped=True), event.reason)
        case Failed():
            return _fail_notify(state, state.info, event)
        case _:
            return None


def _after_refusing(state: Refusing, event: _Outcome) -> Step | None:
    # Whether the plugin got the message makes no difference (behaviour 32).
    if not isinstance(event, Notified | Failed):
        return None
    if state.to_deregister is not None:
        return _leave(state.generation, state.to_deregister, state.error, state.then, state.cause)
    after, commands = _enter(state.then, state.generation, state.info)
    return after, (HangUp(), *commands)


def _after_waiting(state: Waiting | Stale, event: _Outcome) -> Step | None:
    if not isinstance(event, TimerElapsed):
        return None
    if isinstance(state, Waiting) and state.to_notify is not None:
        return _notify_again(state, state.to_notify, state.notify_try + 1)
    return _try_again(state.generation, state.attempt + 1, _kept(state.cause))


def _after_leaving(state: Leaving, event: _Outcome) -> Step | None:
    # A failed Deregister counts as done; it is not retried (fault 84).
    if not isinstance(event, HandlerAccepted | Failed):
        return None
    after, commands = _enter(state.then, state.generation, state.info)
    return after, (Release(state.generation), *commands)


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


def _kept(cause: Cause | None) -> Cause | None:
    """Return the cause with which the next try begins."""
    return Cause(cause.error, answered=True) if cause is not None and cause.answered else None


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
        return _leave(state.generation, info, reason, ThenPark(reason, state.attempt, cause=cause), cause)
    if tries >= NOTIFY_TRIES:
        return _leave(state.generation, info, reason, ThenWait(reason, state.attempt, cause), cause)
    waiting = Waiting(state.generation, state.attempt, reason, info, info, tries, cause)
    if tries == 1:
        again, commands = _notify_again(waiting, info, tries + 1)
        return again, (HangUp(), *commands)
    return waiting, (HangUp(), StartTimer(tries - 1))


# --- moves that several of these share --------------------------------------------------------------------------------


def _abandon(state: State, then: Then, reason: str) -> Step:
    """Abandon what is under way in ``state``, deregister if a Register was asked, and go on to ``then``."""
    if _is_stopping(state):
        then = ThenEnd(stopped=True)
    if isinstance(state, Leaving):
        return attrs.evolve(state, then=then), ()
    pending = pending_deregistration(state)
    if pending is not None:
        return _leave(state.generation, pending, reason, then)
    undo: tuple[Command, ...] = ()
    if isinstance(state, Dialing | AskingInfo | Claiming | Validating | Refusing):
        undo += (HangUp(),)
    if isinstance(state, Claiming | Validating):
        undo += (Release(state.generation),)
    after, commands = _enter(then, state.generation, _info_of(state))
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


def _leave(generation: int, info: PluginInfo, reason: str, then: Then, cause: Cause | None = None) -> Step:
    """Ask the handler to deregister; afterwards do ``then``."""
    return Leaving(generation, info, reason, then, cause), (HangUp(), AskDeregister(info, generation))


def _enter(then: Then, generation: int, info: PluginInfo | None) -> Step:
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


def _try_again(generation: int, attempt: int, cause: Cause | None = None) -> Step:
    """Dial the socket of ``generation``, and go through the whole lifecycle."""
    return _enter(ThenDial(generation, attempt, cause), generation, None)


def _notify_again(state: Waiting, info: PluginInfo, notify_try: int) -> Step:
    """Dial the socket only to notify the plugin, which the handler has registered."""
    dialing = Dialing(state.generation, state.attempt, info, notify_try, _kept(state.cause))
    return dialing, (Dial(patient=False, uid=info.uid),)
