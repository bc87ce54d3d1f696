"""How often an event may bring a try forward: once in each step of the backoff.

A socket that is touched, or whose name is free again, is tried at once although its backoff is not over. If that held
for each such event, a plugin could have itself dialed a thousand times a second by touching its own socket. So the
state of a registration is *hurried* from then on: the wait after that try is one that no further event shortens. The
end of the wait, a retry that a user asks for, and a new generation end that.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import attrs

from .messages import HandlerAvailable, ListenerFound, NameFreed, SocketTouched, TryNow
from .states import Event, Paced, State, TimerElapsed

#: Events that bring a try forward. Whoever has access to a socket or a name can cause any number of them.
HURRYING = (SocketTouched, NameFreed)


def is_hurried(state: State) -> bool:
    """Return whether an event has brought the last try of ``state`` forward."""
    return isinstance(state, Paced) and state.hurried


def paced(before: State, event: Event, after: State) -> State:
    """Return ``after``, the state that follows ``before`` upon ``event``, hurried if it is."""
    if not (isinstance(before, Paced) and before.hurried) and not isinstance(event, HURRYING):
        return after  # The usual case. Nothing else makes a state hurried.
    if not isinstance(after, Paced):
        return after
    hurried = _is_hurried(before, event, after)
    return after if hurried is after.hurried else attrs.evolve(after, hurried=hurried)


def _is_hurried(before: State, event: Event, after: State) -> bool:
    match event:
        case SocketTouched() | NameFreed():
            return is_hurried(before) or after != before
        case TimerElapsed():
            return False
        case TryNow() | HandlerAvailable() | ListenerFound() if after != before:
            return False
        case _:
            return is_hurried(before) and after.generation == before.generation
