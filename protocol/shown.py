"""What is shown of a registration: the words of its state, and how its operations ended.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from . import messages as m
from . import states
from .status import Operation, Outcome

#: The operation that each command begins; those without one begin none.
OPERATIONS: dict[type[states.Command], Operation] = {
    states.Dial: Operation.DIAL,
    states.AskInfo: Operation.GET_INFO,
    states.AskValidate: Operation.VALIDATE,
    states.AskRegister: Operation.REGISTER,
    states.Notify: Operation.NOTIFY,
    states.AskDeregister: Operation.DEREGISTER,
}

#: Events that are an answer to an operation. Even if the answer is negative, the operation itself did not fail.
_ANSWERED = (
    states.Dialed,
    states.InfoReceived,
    states.InfoObserved,
    states.HandlerAccepted,
    states.Notified,
    states.TimerElapsed,
    m.Admitted,
    m.NoHandler,
    m.ClaimRefused,
)


#: The states on the way to a registration: they have no reason, and a cause after a try that failed.
_ON_THE_WAY = (states.AskingInfo, states.Claiming, states.Validating, states.Registering, states.Notifying)


def outcome_of(event: states.Event) -> Outcome | None:
    """Return the outcome of the operation that ``event`` ends, or None if it ends none."""
    if isinstance(event, _ANSWERED):
        return Outcome.OK
    match event:
        case states.InfoRejected():
            return Outcome.REFUSED
        case states.Replaced():
            return Outcome.SUPERSEDED
        case states.Failed():
            return event.outcome
        case _:
            return None


def words_of(state: states.State) -> tuple[str | None, str | None, int]:
    """Return reason, cause and attempt of ``state``; the attempt is 0 if no more is made."""
    if isinstance(state, _ON_THE_WAY) and not _is_delayed(state):  # Nearly all changes in a storm are to one of these.
        return None, None if state.cause is None else str(state.cause), state.attempt
    reason, attempt = _reason_of(state)
    cause = states.cause_of(state)
    return reason, reason if cause is None else str(cause), attempt


def _is_delayed(state: states.State) -> bool:
    return isinstance(state, states.AskingInfo) and state.delayed is not None


def _reason_of(state: states.State) -> tuple[str | None, int]:
    match state:
        case states.Dialing():
            return state.held_up, state.attempt
        case states.Registered():
            return None, state.attempt
        case states.Observed():
            return state.before, state.attempt
        case states.Waiting() | states.Stale() | states.Parked():
            return state.reason, state.attempt
        case states.Refusing():
            return state.error, state.attempt
        case states.Leaving():
            return state.reason, 0
        case states.AskingInfo():
            return state.delayed, state.attempt
        case states.Gone():
            return "plugind stops" if state.stopped else "the socket was removed", 0
        case _:
            return None, state.attempt
