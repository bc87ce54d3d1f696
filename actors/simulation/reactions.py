"""The reactions of fake plugins to calls."""

from __future__ import annotations

import enum
from typing import TypeVar

from grpclib.const import Status
from grpclib.exceptions import GRPCError

C = TypeVar("C", bound=str)


class Reaction(enum.Enum):
    """The reaction of a fake plugin to one call."""

    ANSWERED = "answered"
    #: The call ends with an error.
    REFUSED = "refused"
    #: The call is never answered; the client's deadline ends it.
    HUNG = "hung"
    #: The connection breaks.
    DIED = "died"


def react(call: C, how: Reaction, *, hangs: set[C], errors: dict[C, GRPCError]) -> None:
    """Change the reaction to later calls: those in ``hangs`` are never answered, those in ``errors`` are refused."""
    hangs.discard(call)
    errors.pop(call, None)
    if how is Reaction.HUNG:
        hangs.add(call)
    elif how is Reaction.REFUSED:
        errors[call] = GRPCError(Status.FAILED_PRECONDITION, f"{call} is refused on command")
