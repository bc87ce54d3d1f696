"""What people are shown of a plugin: snapshot values and their JSON form."""

from __future__ import annotations

import enum

import attrs


class StateName(enum.StrEnum):
    """The states of a socket's registration, by the names that users see."""

    WAITING = "waiting"
    DIALING = "dialing"
    ASKING_INFO = "asking-info"
    VALIDATING = "validating"
    REGISTERING = "registering"
    NOTIFYING = "notifying"
    REGISTERED = "registered"
    PARKED = "parked"
    STALE = "stale"
    LEAVING = "leaving"
    GONE = "gone"


class Operation(enum.StrEnum):
    """What is counted and timed: the steps of a registration."""

    DIAL = "dial"
    GET_INFO = "get-info"
    VALIDATE = "validate"
    REGISTER = "register"
    NOTIFY = "notify"
    DEREGISTER = "deregister"


class Outcome(enum.StrEnum):
    """How an operation ended: one value for each, counted once, logged once, shown once."""

    OK = "ok"
    #: The other side answered, and its answer was no.
    REFUSED = "refused"
    #: The other side failed, or broke the protocol.
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    #: A newer event made the operation pointless.
    SUPERSEDED = "superseded"


@attrs.frozen
class Finished:
    """The operation whose end changed the state, for counters and histograms."""

    operation: Operation
    outcome: Outcome
    #: Seconds that it took.
    seconds: float
