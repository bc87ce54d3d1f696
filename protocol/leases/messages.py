"""The messages to the lease actor, and what it says to others."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final

import attrs

from ..messages.addresses import Address
from ..messages.status import Lagged
from ..plugins.devices import DeviceList, DeviceOptions, Key
from ..values import record, value
from .config import LeaseLimits
from .drains import Drain, Drains, DrainTarget
from .mapped import BUILT_IN, ResourceConfig
from .replies import Failure, InLine, LeaseChanged, LeasesSnapshot, Problem, Released
from .values import Answer, Lease, Owner, Pool, ProcessIdentity, Request

_NUMBERS = itertools.count(1)


#: Who may end the leases of others, unless more are named.
ROOT = frozenset({0})


def new_ticket() -> int:
    """Return a number that no asker of this process has had."""
    return next(_NUMBERS)


#: Those of the other module, which imports less.
__all__ = ["Failure", "InLine", "LeaseChanged", "LeasesSnapshot", "Problem", "Released"]

# --- to the task that calls one device plugin -------------------------------------------------------------------------


@value
class PreferenceAsked:
    """Ask a plugin by GetPreferredAllocation which devices of ``available`` to take."""

    #: The lease for which this is asked.
    lease: str
    resource: str
    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int
    reply: Address[CallMessage]


@value
class AllocateAsked:
    """Ask a plugin by Allocate to prepare devices, and by PreStartContainer if it wants that."""

    lease: str
    resource: str
    devices: tuple[str, ...]
    #: Whether PreStartContainer follows.
    pre_start: bool
    reply: Address[CallMessage]
    #: The user for whom the lease is.
    uid: int


@value
class CallWithdrawn:
    """Make no call for this lease any more: one that waits in line is answered as one that was not made.

    A plugin that is at work is not disturbed.
    """

    lease: str


#: The calls that a plugin is asked to answer.
PluginCall = PreferenceAsked | AllocateAsked
#: What the task of one plugin is asked; it makes one call at a time, in order.
DeviceCall = PluginCall | CallWithdrawn


@value
class Preferred:
    """The answer to :class:`PreferenceAsked`: what the plugin prefers, or why it said nothing of use."""

    lease: str
    resource: str
    devices: tuple[str, ...] = ()
    error: str | None = None


@value
class Allocated:
    """The plugin has prepared the devices."""

    lease: str
    resource: str
    answer: Answer
    #: How long the plugin took to answer Allocate, for metrics; not compared.
    seconds: float | None = attrs.field(default=None, eq=False)
    #: The user of the process that listens at the endpoint of the plugin; None if that is not known.
    uid: int | None = attrs.field(default=None, eq=False)


@value
class AllocationRefused:
    """The plugin has refused, or its answer is of no use: it holds nothing for the lease."""

    lease: str
    resource: str
    reason: str
    #: How long Allocate took; None if it was not called.
    seconds: float | None = attrs.field(default=None, eq=False)


@value
class AllocationLost:
    """Nobody knows whether the plugin has prepared the devices: the call timed out, or its connection was lost."""

    lease: str
    resource: str
    #: The plugin that was asked.
    key: Key
    reason: str
    #: How long Allocate took; None if it was not called.
    seconds: float | None = attrs.field(default=None, eq=False)
    #: The process that listens at the endpoint of the plugin; None if that is not known.
    pid: int | None = attrs.field(default=None, eq=False)
    #: Whether the connection has ended: if there is no such process any more, the plugin has ended with it.
    is_cut: bool = attrs.field(default=False, eq=False)


CallMessage = Preferred | Allocated | AllocationRefused | AllocationLost

# --- from the devices actor -------------------------------------------------------------------------------------------


@value
class Offer:
    """What can be leased of one resource now."""

    resource: str
    #: The list of the active plugin, or the last one.
    devices: DeviceList = attrs.field(factory=DeviceList)
    #: The active plugin and the address of its calls; None while it is lost or awaited, and nothing can be leased.
    key: Key | None = None
    options: DeviceOptions = attrs.field(factory=DeviceOptions)
    calls: Address[DeviceCall] | None = None
    #: Why nothing can be leased.
    reason: str | None = None


@value
class OfferChanged:
    """The offer of a resource is another one. Of several that wait only the newest counts."""

    offer: Offer


@value
class OfferEnded:
    """A resource is not known any more. Its leases stay."""

    resource: str


@value
class PluginEnded:
    """The process of a plugin has ended: it prepares nothing any more."""

    key: Key


# --- from callers -----------------------------------------------------------------------------------------------------


@value
class LeaseAsked:
    """A caller asks for a lease. The answer is the lease when it is held, or a failure."""

    request: Request
    owner: Owner
    uid: int
    #: Tells this asker from all others: for :class:`AskerLeft`.
    ticket: int
    reply: Address[Lease | Failure]
    #: The name that the caller gave it; None for a name of plugind's.
    id: str | None = None
    #: Until when it waits for devices, by ``trio.current_time()``; None if it does not wait.
    deadline: float | None = None
    #: Gets the place in line, and the next one when that changes; None if the caller does not ask for it.
    progress: Address[InLine] | None = attrs.field(default=None, eq=False)
    #: Gets the lease as it was last, when it has ended: for a connection that owns it.
    ended: Address[Lease] | None = attrs.field(default=None, eq=False)


@value
class AskerLeft:
    """A caller went before it had its answer, or the answer could not be delivered, or the owning connection closed.

    A lease that it did not name itself is released, and so is one that the connection owns.
    """

    ticket: int
    #: The connection was closed by plugind itself: a lease that it owned waits some time for the next one.
    cut: bool = False


@value
class ReleaseAsked:
    """A caller asks to end leases of its own; root may end all."""

    ids: tuple[str, ...]
    uid: int
    reply: Address[Released | Failure]


@value
class RenewAsked:
    """A caller asks that the time of a lease begin again."""

    id: str
    uid: int
    reply: Address[Lease | Failure]


@value
class BindAsked:
    """The hook of a container asks to bind a lease to the container's init."""

    id: str
    uid: int
    init: ProcessIdentity
    reply: Address[Lease | Failure]


@value
class ResumeAsked:
    """After a restart of plugind, the owner of a lease has another connection, and names its token."""

    id: str
    uid: int
    token_hash: str
    #: From now on :class:`AskerLeft` with this ticket ends the lease.
    ticket: int
    reply: Address[Lease | Failure]
    #: Gets the lease as it was last, when it has ended.
    ended: Address[Lease] | None = attrs.field(default=None, eq=False)


@value
class RecoverAsked:
    """An operator says that no leased device is in use: the devices that a lost state withholds are free."""

    uid: int
    reply: Address[Failure | None]


@value
class DrainAsked:
    """An operator asks that nothing of a target be given, or with another reason or until another time than now."""

    drain: Drain
    reply: Address[Drain | Failure]


@value
class UndrainAsked:
    """An operator asks that a target be given again; the answer is the drain that has ended."""

    target: DrainTarget
    uid: int
    reply: Address[Drain | Failure]


@value
class LeasesAsked:
    """Somebody asks for all leases."""

    reply: Address[LeasesSnapshot]


@value
class ShowAsked:
    """Somebody asks how one lease is."""

    id: str
    reply: Address[Lease | Failure]


#: What a subscriber gets: the snapshot first, then changes.
LeasesViewMessage = LeasesSnapshot | LeaseChanged | Lagged


@value
class LeasesSubscribed:
    """Somebody asks for all leases, and for each change from then on."""

    subscriber: Address[LeasesViewMessage]


@value
class LeasesUnsubscribed:
    """A subscriber wants no more."""

    subscriber: Address[LeasesViewMessage]


# --- from the parts of the lease actor --------------------------------------------------------------------------------


@value
class Saved:
    """What was to be written is written; ``error`` says why it is not."""

    #: The number that the write was given.
    write: int
    error: str | None = None
    #: With an error: it may be written yet, since the disk has not answered in time. What undoes it is to be written at
    #: once, by a write that nobody awaits: writes are made in order.
    unknown: bool = False


#: Why a lease has ended that was written in another boot.
REBOOTED: Final = "the machine was started again"


@value
class Kept:
    """What was found in the store of leases: those of this boot."""

    leases: tuple[Lease, ...] = ()
    #: Why no device may be given to anybody: leases were lost, or could not be read until now. None if all are known.
    withheld: str | None = None
    #: What is out of service, since whatever boot, and what is wrong with the files that say it.
    drains: Drains = attrs.field(factory=dict, hash=False)
    problem: str | None = None
    #: Those of another boot, as they were; the reason is that of their end. The store drops them when it is begun.
    ended: tuple[Lease, ...] = ()
    #: How many of the leases were written under another boot id, although their owners run.
    moved: int = 0


@record(eq=False)
class Notified:
    """What is remembered of a lease of which somebody was notified."""

    #: Whether the caller gave it its name.
    named: bool = True
    #: The tickets of the callers who were notified, and have not left.
    tickets: set[int] = attrs.field(factory=set)
    #: Where the end of the lease is awaited, by ticket.
    ends: dict[int, Address[Lease]] = attrs.field(factory=dict)


@value
class LeasesRead:
    """The store of leases, which could not be read at the start, has been read."""

    kept: Kept


@value
class OwnerEnded:
    """The process that owns a lease has ended, or its time is over.

    The lease may have another owner by now, who is not meant.
    """

    id: str
    owner: Owner


@value
class FileWritten:
    """The CDI file of a lease is there; ``error`` says why it is not."""

    id: str
    error: str | None = None


@value
class LeaseRules:
    """Devices are given by these rules from now on. Leases keep the devices that they have."""

    #: Devices that are taken only by requests that name their pool; no device is in two.
    pools: tuple[Pool, ...] = ()
    limits: LeaseLimits = attrs.field(factory=LeaseLimits)
    #: Users who may end the leases of others.
    operators: frozenset[int] = ROOT
    #: What plugins of other users may put into leases; see :mod:`.answers`.
    permitted: tuple[str, ...] = ()
    #: What leases of resources get besides what the plugins answer.
    resources: Mapping[str, ResourceConfig] = attrs.field(default=BUILT_IN, hash=False)


#: What may change a lease.
StateMessage = (
    OfferChanged
    | OfferEnded
    | PluginEnded
    | LeaseAsked
    | AskerLeft
    | ReleaseAsked
    | RenewAsked
    | BindAsked
    | ResumeAsked
    | RecoverAsked
    | DrainAsked
    | UndrainAsked
    | CallMessage
    | Saved
    | LeasesRead
    | OwnerEnded
    | FileWritten
    | LeaseRules
)

LeasesMessage = StateMessage | LeasesAsked | ShowAsked | LeasesSubscribed | LeasesUnsubscribed
