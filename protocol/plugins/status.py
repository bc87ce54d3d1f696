"""The values that describe a plugin's registration to people and programs: state, operation, outcome, status.

The JSON forms are in ``plugind.protocol.status.json``. Messages consist of these values, so this module imports no
messages.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from ..values import value
from ..words import Health, StateName, Step, Watching
from .health import Facts
from .info import source_of

__all__ = ["StateName", "Watching"]  # defined elsewhere


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
    #: The handler raised an exception that is no refusal: it has a bug, or something that it needs fails.
    BROKEN = "broken"
    TIMED_OUT = "timed-out"
    #: A newer event made the operation pointless.
    SUPERSEDED = "superseded"


@value
class Finished:
    """An operation that ended, for counters and histograms."""

    operation: Operation
    outcome: Outcome
    seconds: float


@value
class Ending:
    """How a call of a handler ended."""

    outcome: Outcome
    error: str = ""
    #: The error in few words, if the handler gave them.
    cause: str | None = None
    #: Whether the handler was away, so that the plugin is told nothing.
    away: bool = False


@value
class PluginCounts:
    """How many plugins are in each state."""

    by_state: Mapping[StateName, int]
    #: How many registered plugins do not serve: nobody listens on their sockets.
    not_serving: int = 0
    #: Why roots cannot be used now, for example because a parent directory is missing.
    unusable: tuple[str, ...] = ()
    #: How many sockets wait for a dial slot. A socket that never had a slot has no state yet.
    queued: int = 0
    #: How many devices are healthy, and how many are not.
    devices: tuple[int, int] = (0, 0)
    #: Whether no device is given to anybody, since it is not known which are in use.
    withheld: bool = False


@value
class HistoryEntry:
    """One change of state in the bounded history of a socket."""

    time: float
    state: StateName
    reason: str | None
    attempt: int
    #: The error alone, without the reference's text around it.
    cause: str | None = None
    #: The step of the try, if a try was under way.
    step: Step | None = None


@value
class PluginStatus:
    """The status of one socket; times are ``trio.current_time()`` in seconds, or Unix seconds from a client."""

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
    #: Warnings, for example that the socket lies in a deprecated directory.
    warnings: tuple[str, ...] = ()
    #: The user and the process that listened when the socket was dialed.
    uid: int | None = None
    pid: int | None = None
    #: The error alone, in few words; ``reason`` is the text that the plugin gets. A later try keeps the error of an
    #: earlier one.
    cause: str | None = None
    history: tuple[HistoryEntry, ...] = ()
    #: Whether somebody listens on the socket of a registered plugin, as far as known; None if it is not registered.
    serving: bool | None = None
    #: Why nobody listens, in words.
    not_serving: str | None = None
    #: When that was found.
    not_serving_since: float | None = None
    called: bool = False
    #: The user who owns the socket's file; the process that listens can be another user's.
    owner: int | None = None
    #: The health by the plugin's handler; None if it reports none.
    health: Health | None = None
    health_reason: str | None = None
    health_since: float | None = None
    #: The facts by the plugin's handler.
    facts: Facts = ()
    #: How many checks have failed in a row, if the health comes from checks.
    failed_checks: int = 0
    #: Whether type and name are those of the last plugin at the path. The present one has not answered yet, and waits
    #: because earlier lives were short.
    last_known: bool = False
    #: The step of the try, if one is under way.
    step: Step | None = None
    #: How many seconds each completed step of the present or last try took.
    steps: tuple[tuple[Step, float], ...] = ()

    @property
    def source(self) -> str:
        """How the plugin announced itself, in words."""
        return source_of(self.socket, self.pid or 0 if self.called else None)
