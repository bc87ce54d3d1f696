"""The phases of a registration, what ends each of them, and how a retry is answered in each.

The phase is where a registration is. What it does there is the code of ``plugind.actors.registration``.
"""

from __future__ import annotations

import enum

from ..messages.discovery import SocketAppeared, SocketVanished
from ..messages.reconciler import RetryAnswer, StopAsked, StopForced
from ..messages.registration import HandlerWithdrawn, ListenerLost, RegistrationMessage
from ..plugins.status import Operation
from ..words import STATE_IN, StateName, Step
from .following import End, Next, Pause


class Phase(enum.Enum):
    """Where a registration is, with how users see it and the operation that is counted."""

    #: Connecting to the socket.
    DIAL = (1, Step.DIAL, Operation.DIAL)
    #: The plugin is asked for its info.
    INFO = (2, Step.INFO, Operation.GET_INFO)
    #: The reconciler is asked to admit the plugin to its (type, name).
    CLAIM = (3, Step.CLAIM)
    #: The handler is asked whether it accepts the plugin.
    VALIDATE = (4, Step.VALIDATE, Operation.VALIDATE)
    #: The handler is asked to register.
    REGISTER = (5, Step.REGISTER, Operation.REGISTER)
    #: The plugin is notified that it is registered.
    NOTIFY = (6, Step.NOTIFY, Operation.NOTIFY)
    #: Connecting to the socket, only to notify the plugin that it is registered.
    NOTIFY_DIAL = (7, Step.DIAL, Operation.DIAL)
    #: The pause between two tries to notify.
    NOTIFY_PAUSE = (8, StateName.WAITING)
    #: The plugin is notified that it is not registered, and why.
    REFUSE = (9, Step.NOTIFY, Operation.NOTIFY)
    #: The handler is asked to deregister.
    LEAVE = (10, StateName.LEAVING, Operation.DEREGISTER)
    WAITING = (11, StateName.WAITING)
    STALE = (12, StateName.STALE)
    PARKED = (13, StateName.PARKED)
    REGISTERED = (14, StateName.REGISTERED)
    #: In observe mode: the plugin has said what it is, and is followed.
    OBSERVED = (15, StateName.OBSERVED)
    #: An observed plugin is asked for its info again.
    ASK_AGAIN = (16, StateName.OBSERVED)
    GONE = (17, StateName.GONE)

    # The number keeps those apart that look alike.
    def __init__(self, _number: int, shown: StateName | Step, operation: Operation | None = None) -> None:
        #: Which step of a try it is, if it is one.
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
#: The phases in which nothing happens at the socket for long, so that the liveness actor looks at it.
NOT_DIALED = (*SERVING, Phase.STALE)
#: The phases that no stop ends: the handler must have finished before the next step is decided.
_FINISHES = frozenset({Phase.REGISTER, Phase.LEAVE})


def ends(phase: Phase, message: RegistrationMessage, generation: int, plugin_type: str | None) -> bool:
    """Return whether ``message`` ends what is done in ``phase`` for a socket of this generation.

    ``plugin_type`` is that of the plugin that a handler has or is asked about.

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
    """Return what a caller is told who asks for a retry.

    ``then`` is what follows a Deregister, or the end while plugind stops.
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
