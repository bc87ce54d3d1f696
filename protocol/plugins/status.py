"""The values that describe a plugin's registration to people and programs: state, operation, outcome, status.

The JSON forms are in ``plugind.protocol.status.json``. The messages are made of these values, so this module imports no
message.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from ..values import value
from ..words import Health, StateName, Step, Watching
from .health import Facts
from .info import source_of

__all__ = ["StateName", "Watching"]  # what is defined elsewhere


class Operation(enum.StrEnum):
    """The steps of a registration, which are counted and timed."""

    DIAL = "dial"
    GET_INFO = "get-info"
    VALIDATE = "validate"
    REGISTER = "register"
    NOTIFY = "notify"
    DEREGISTER = "deregister"


class Outcome(enum.StrEnum):
    """How an operation ended. Each end is counted once, logged once and shown once."""

    OK = "ok"
    #: The other side answered no.
    REFUSED = "refused"
    #: The other side failed, or broke the protocol.
    FAILED = "failed"
    #: The handler raised an exception that is no refusal: it has a bug, or what it needs fails.
    BROKEN = "broken"
    TIMED_OUT = "timed-out"
    #: A newer event made the operation pointless.
    SUPERSEDED = "superseded"


@value
class Finished:
    """An operation that ended, for counters and histograms."""

    operation: Operation
    outcome: Outcome
    #: Seconds that it took.
    seconds: float


@value
class Ending:
    """How a call of a handler ended."""

    outcome: Outcome
    error: str = ""
    #: The error in few words, if the handler gave them.
    cause: str | None = None


@value
class PluginCounts:
    """How many plugins are in each state."""

    by_state: Mapping[StateName, int]
    #: How many of the registered ones do not serve: nobody listens on their sockets.
    not_serving: int = 0
    #: Why roots cannot be used now, such as one whose parent directory is missing.
    unusable: tuple[str, ...] = ()
    #: How many sockets wait for a dial slot. One that has not had any is in no state yet.
    queued: int = 0


@value
class HistoryEntry:
    """One change of state in the bounded history of a socket."""

    time: float
    state: StateName
    reason: str | None
    attempt: int
    #: The error alone, without the words of the reference around it.
    cause: str | None = None
    #: Where the try was that was under way, if one was.
    step: Step | None = None


@value
class PluginStatus:
    """Everything that is known about one socket; times are ``trio.current_time()`` in seconds."""

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
    #: None if the plugin is not registered.
    active: bool | None = None
    #: For example that the socket lies in a deprecated directory.
    warnings: tuple[str, ...] = ()
    #: The user and the process that listened when the socket was dialed.
    uid: int | None = None
    pid: int | None = None
    #: The error alone, in few words: ``reason`` has the words that the plugin is told. In a later try it is what the
    #: plugin answered, or was told, in an earlier one.
    cause: str | None = None
    history: tuple[HistoryEntry, ...] = ()
    #: Whether somebody listens on the socket of a registered plugin, as far as is known; None if it is not registered.
    serving: bool | None = None
    #: Why not, in words.
    not_serving: str | None = None
    #: When it was found that nobody listens.
    not_serving_since: float | None = None
    #: Whether the plugin announced itself by a call of Register.
    called: bool = False
    #: The user that the file of the socket belongs to; the process that listens may be another user's.
    owner: int | None = None
    #: How the plugin is, as its handler reports; None if it reports nothing.
    health: Health | None = None
    health_reason: str | None = None
    #: When this health began.
    health_since: float | None = None
    #: What its handler knows of it.
    facts: Facts = ()
    #: How many checks have failed in a row, if they say how the plugin is.
    failed_checks: int = 0
    #: Whether type and name are those of the plugin that was last at the path. This one has not said any yet, and waits
    #: because the lives before it were short.
    last_known: bool = False
    #: Where the try is that is under way, if one is.
    step: Step | None = None
    #: How many seconds each step took of the try that is under way or has led to this state, as far as it has ended.
    steps: tuple[tuple[Step, float], ...] = ()

    @property
    def source(self) -> str:
        """How the plugin announced itself, in words."""
        return source_of(self.socket, self.pid or 0 if self.called else None)
