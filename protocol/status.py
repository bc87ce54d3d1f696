"""The values that describe a plugin's registration to people and programs: state, operation, outcome, status.

The JSON forms are in ``plugind.protocol.status_json``. The messages are made of these values, so this module imports no
message.
"""

from __future__ import annotations

import enum

from .values import value


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


@value
class Finished:
    """The operation whose end changed the state, for counters and histograms."""

    operation: Operation
    outcome: Outcome
    #: Seconds that it took.
    seconds: float


class Watching:
    """How a root is watched, in the words that health reports."""

    EVENTS = "events"
    #: inotify is not to be had; the periodic rescan alone works: degraded, and said so (fault 17).
    POLLING = "polling"
    #: The root cannot be read; it is tried again with backoff (behaviour 2).
    UNAVAILABLE = "unavailable"


@value
class HistoryEntry:
    """One change of state in a plugin's bounded history."""

    time: float
    state: StateName
    reason: str | None
    attempt: int


@value
class PluginStatus:
    """All that is known of one socket; times are ``trio.current_time()`` in seconds."""

    socket: str
    root: str
    generation: int
    state: StateName
    since: float
    reason: str | None = None
    attempt: int = 0
    next_try: float | None = None
    type: str | None = None
    name: str | None = None
    endpoint: str | None = None
    versions: tuple[str, ...] | None = None
    registered_in: float | None = None
    #: None where the type does not tell active from standby, or it is not registered.
    active: bool | None = None
    #: Words of warning, for a socket in a deprecated directory say.
    warnings: tuple[str, ...] = ()
    uid: int | None = None
    pid: int | None = None
    history: tuple[HistoryEntry, ...] = ()
