"""What those who ask about leases are told. It imports little, for commands that must start quickly."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from ..errors import ClientError
from ..status.histograms import Histogram
from ..text import escaped
from ..values import value
from .values import Lease, Pool

if TYPE_CHECKING:
    from .drains import Drain, DrainTarget


class Problem(enum.StrEnum):
    """Why a caller did not get what it asked for; each has an exit code of its own."""

    #: There are not enough devices (1).
    UNAVAILABLE = "unavailable"
    #: The request is wrong (2).
    USAGE = "usage"
    #: The plugin has refused, or was lost (4).
    REFUSED = "refused"
    #: It has waited for too long (124).
    TIMEOUT = "timeout"
    #: The caller may not do that (1).
    FORBIDDEN = "forbidden"
    #: There is no such lease (1).
    UNKNOWN = "unknown"
    #: The state cannot be kept (1).
    STORAGE = "storage"
    #: There are too many leases or callers (1).
    LIMIT = "limit"


@value
class LimitMet:
    """The limit of a user that keeps a request from its devices."""

    #: The name of the field in :class:`~.values.UserLimits`.
    name: str
    value: float
    resource: str
    #: The pool that has the limit; None if the resource has it.
    pool: str | None = None
    #: Where the configuration has it: a file and a line, a variable or an option; empty if a program made it.
    source: str = ""

    @property
    def key(self) -> str:
        """Its place in the configuration."""
        if self.pool is None:
            return f'resources."{self.resource}".{self.name}'
        return f"{self.name} of the pool {self.pool} of {self.resource}"

    @property
    def words(self) -> str:
        """Where the configuration has it, in words."""
        return f"limit {self.key}, {self.source}" if self.source else f"limit {self.key}"


@value
class Failure:
    """Why there is no lease, or nothing was done."""

    problem: Problem
    text: str
    #: The leases that hold what was asked for.
    holders: tuple[Lease, ...] = ()
    #: The limit of the user that was met, if one was.
    limit: LimitMet | None = None


class LeaseFailedError(ClientError):
    """There is no lease, or what was asked about one was not done; the text says why.

    A program gets it from a daemon and from its own node alike.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(escaped(failure.text))
        #: What the daemon or the node says.
        self.failure = failure
        #: Why, as one of few words.
        self.problem = failure.problem
        #: The leases that hold what was asked for.
        self.holders = failure.holders
        #: The limit of the user that was met, if one was.
        self.limit = failure.limit


@value
class InLine:
    """A request waits in line."""

    #: 1 if nobody before it waits for devices of the same resources.
    place: int
    #: Why it cannot have its devices now; the holders are first those that wait before it, then those that have some.
    shortage: Failure


@value
class Released:
    """These have ended, and those were not there."""

    released: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    #: Why that is not written yet, so that a restart of plugind would bring them back; None if it is.
    unwritten: str | None = None


@value
class HistoryLosses:
    """What is missing in the history of leases."""

    #: Leases that have ended and could not be written.
    leases: int = 0
    #: Files that were set aside.
    files: int = 0


@value
class LeasesSnapshot:
    """All leases at one moment: first those that have devices, ordered by id, then those in line, in its order."""

    time: float
    leases: tuple[Lease, ...] = ()
    #: Why no device is given to anybody; None if they are.
    withheld: str | None = None
    #: What is wrong with the file that keeps the leases; None if nothing is.
    problem: str | None = None
    #: The devices that are taken only by requests that name their pool.
    pools: tuple[Pool, ...] = ()
    #: What is out of service.
    drains: Mapping[DrainTarget, Drain] = attrs.field(factory=dict, hash=False)
    #: For metrics, by the label of the resource: leases that have devices and how many of these devices, failures by
    #: resource and problem, and how long plugins took to answer Allocate.
    counts: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    leased: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    #: How many devices can be leased now, by resource.
    free: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    #: How many listed devices are drained, by resource.
    drained: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    failures: Mapping[tuple[str, str], int] = attrs.field(factory=dict, hash=False)
    durations: Mapping[str, Histogram] = attrs.field(factory=dict, eq=False)
    #: Likewise: whether leases cannot be kept over a restart now, and how many reads and writes of them have failed.
    state_fails: bool = False
    state_failures: int = 0
    #: Likewise: what is missing in the history; None if none is kept.
    history_losses: HistoryLosses | None = None


@value
class LeaseChanged:
    """A lease is not as it was."""

    time: float
    lease: Lease
