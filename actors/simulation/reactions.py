"""What fake plugins do with a call."""

from __future__ import annotations

import enum
from typing import TypeVar

from grpclib.const import Status
from grpclib.exceptions import GRPCError

C = TypeVar("C", bound=str)


class Reaction(enum.Enum):
    """What a fake plugin does with one call."""

    ANSWERED = "answered"
    #: The call ends with an error.
    REFUSED = "refused"
    #: The call is never answered; the client's deadline ends it.
    HUNG = "hung"
    #: The connection breaks.
    DIED = "died"


def react(call: C, how: Reaction, *, hangs: set[C], errors: dict[C, GRPCError]) -> None:
    """Change what becomes of later calls: those in ``hangs`` are never answered, and those in ``errors`` refused."""
    hangs.discard(call)
    errors.pop(call, None)
    if how is Reaction.HUNG:
        hangs.add(call)
    elif how is Reaction.REFUSED:
        errors[call] = GRPCError(Status.FAILED_PRECONDITION, f"{call} is refused on command")
