"""The phases of a registration, the messages that end each of them, and the answers to a retry in each."""

from __future__ import annotations

import enum

from ..messages.discovery import SocketAppeared, SocketVanished
from ..messages.reconciler import RetryAnswer, StopAsked, StopForced
from ..messages.registration import HandlerWithdrawn, ListenerLost, RegistrationMessage
from ..plugins.status import Operation
from ..words import STATE_IN, StateName, Step
from .following import End, Next, Pause


class Phase(enum.Enum):
    """The place of a registration, its name for users, and the operation that is counted."""

    DIAL = (1, Step.DIAL, Operation.DIAL)
    #: GetInfo: the plugin is asked for its info.
    INFO = (2, Step.INFO, Operation.GET_INFO)
    #: The reconciler is asked to admit the plugin to its (type, name).
    CLAIM = (3, Step.CLAIM)
    VALIDATE = (4, Step.VALIDATE, Operation.VALIDATE)
    REGISTER = (5, Step.REGISTER, Operation.REGISTER)
    #: The plugin is notified that it is registered.
    NOTIFY = (6, Step.NOTIFY, Operation.NOTIFY)
    #: Connecting to the socket, only to notify the plugin that it is registered.
    NOTIFY_DIAL = (7, Step.DIAL, Operation.DIAL)
    NOTIFY_PAUSE = (8, StateName.WAITING)
    #: The plugin is notified that it is not registered, and why.
    REFUSE = (9, Step.NOTIFY, Operation.NOTIFY)
    LEAVE = (10, StateName.LEAVING, Operation.DEREGISTER)
    WAITING = (11, StateName.WAITING)
    STALE = (12, StateName.STALE)
    PARKED = (13, StateName.PARKED)
    REGISTERED = (14, StateName.REGISTERED)
    #: In observe mode: the plugin has given its info, and is followed.
    OBSERVED = (15, StateName.OBSERVED)
    #: An observed plugin is asked for its info again.
    ASK_AGAIN = (16, StateName.OBSERVED)
    GONE = (17, StateName.GONE)

    # The number tells members with equal values apart.
    def __init__(self, _number: int, shown: StateName | Step, operation: Operation | None = None) -> None:
        self.step = shown if isinstance(shown, Step) else None
        self.state = STATE_IN[shown] if isinstance(shown, Step) else shown
        self.operation = operation


PAUSES = {StateName.WAITING: Phase.WAITING, StateName.STALE: Phase.STALE, StateName.PARKED: Phase.PARKED}
#: The phases that the removal of the handler ends. A Register finishes first.
_WITH_HANDLER = frozenset(
    {Phase.CLAIM, Phase.VALIDATE, Phase.NOTIFY, Phase.NOTIFY_DIAL, Phase.NOTIFY_PAUSE, Phase.REGISTERED}
)
#: The phases in which somebody listens on the socket, as far as is known.
SERVING = (Phase.REGISTERED, Phase.OBSERVED, Phase.ASK_AGAIN)
#: The phases in which nothing is sent to the socket for long, so that the liveness actor watches it.
NOT_DIALED = (*SERVING, Phase.STALE)
#: The phases that no stop ends, because the next step depends on the result of the handler.
_FINISHES = frozenset({Phase.REGISTER, Phase.LEAVE})


def ends(phase: Phase, message: RegistrationMessage, generation: int, plugin_type: str | None) -> bool:
    """Return whether ``message`` ends ``phase`` for a socket of this generation.

    ``plugin_type`` is the type of the plugin that the handler has, or is asked about.

    =====================  =========================================================================================
    another socket, none   each phase but Deregister; a Register is cancelled
    a forced stop          each phase but Register and Deregister (fault 87)
    a stop                 as that, but a notification of success may finish, unless the stop deregisters (behaviour 42)
    the handler's removal  a claim, Validate, a notification of success, the rest
    nobody listens         the rest, where a plugin that does not serve is to be deregistered
    =====================  =========================================================================================
    """
    match message:
        case SocketAppeared() | SocketVanished():
            return phase is not Phase.LEAVE
        case StopForced():
            return phase not in _FINISHES
        case StopAsked():
            return phase not in _FINISHES and (message.deregister or phase is not Phase.NOTIFY)
        case HandlerWithdrawn():
            return phase in _WITH_HANDLER and message.type == plugin_type
        case ListenerLost():
            return phase in SERVING and message.generation == generation
        case _:
            return False


def answer_to_retry(socket: str, phase: Phase, then: Next | None) -> RetryAnswer:
    """Return the answer to a request for a retry.

    ``then`` is what follows a Deregister, or :class:`End` while plugind stops.
    """
    match phase:
        case Phase.WAITING | Phase.STALE | Phase.PARKED | Phase.NOTIFY_PAUSE | Phase.OBSERVED:
            return RetryAnswer(socket, tried=True, why="tried now")
        case Phase.REGISTERED:
            return RetryAnswer(socket, tried=False, why="registered already, nothing to retry")
        case _ if isinstance(then, End) or phase is Phase.GONE:
            why = "it is leaving: plugind stops, or its socket was removed"
            return RetryAnswer(socket, tried=False, why=why)
        case Phase.LEAVE:
            why = "it is being deregistered, and tried right after that"
        case Phase.REFUSE:
            why = "it is being notified of a failed attempt, and tried right after that"
        case _:
            why = f"an attempt is under way: {phase.step or phase.state}"
    return RetryAnswer(socket, tried=True, why=why)


def phase_of(pause: Pause) -> Phase:
    """Return the phase of a pause between two tries."""
    if pause.notify_try is not None:
        return Phase.NOTIFY_PAUSE
    return PAUSES[pause.state]
