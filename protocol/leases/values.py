"""Leases as values: what is asked for, who holds it, and what the plugins have said."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from ..values import value

#: The CDI vendor and class of all leases: ``podman run --device plugind/lease=NAME``.
CDI_KIND: Final = "plugind/lease"
#: Seconds within which a container has to start, unless its lease says another time.
START_WITHIN: Final = 60.0

# --- who holds a lease ------------------------------------------------------------------------------------------------


@value
class ProcessIdentity:
    """One process, and no other that gets its pid later, on whatever boot."""

    pid: int
    #: When it began, in clock ticks after the boot: field 22 of ``/proc/PID/stat``.
    start_ticks: int
    #: ``/proc/sys/kernel/random/boot_id``.
    boot_id: str


@value
class ProcessOwner:
    """A process: the lease ends with it."""

    process: ProcessIdentity


@value
class ContainerOwner:
    """A container, by its init: the lease is bound to it by the CDI hook, and ends some time after it."""

    #: None until the hook has bound it; and again after the end of a container whose lease stays.
    init: ProcessIdentity | None = None
    #: Seconds within which it has to start. None: the lease stays, before a container and after it, until it is
    #: released.
    start_within: float | None = START_WITHIN


@value
class TimeOwner:
    """Nobody: the lease ends at a time."""

    #: How long it lasts from now on, in seconds; a renewal begins that time again.
    seconds: float
    #: ``CLOCK_BOOTTIME`` in nanoseconds at which it ends; None until it is held.
    expires: int | None = None


@value
class ConnectionOwner:
    """A connection to the status socket: the lease ends when it closes."""

    #: A hash of the token with which the owner comes back after a restart of plugind. The server of the connection
    #: makes the token.
    token_hash: str = ""


@value
class NoOwner:
    """Nobody: the lease ends when it is released, or with the boot."""


Owner = ProcessOwner | ContainerOwner | TimeOwner | ConnectionOwner | NoOwner


def process_of(owner: Owner) -> ProcessIdentity | None:
    """Return the process that owns a lease, which is the init of a container; None if none does, or none yet."""
    if isinstance(owner, ProcessOwner):
        return owner.process
    return owner.init if isinstance(owner, ContainerOwner) else None


# --- what is asked for ------------------------------------------------------------------------------------------------


@value
class Wanted:
    """So many devices of one resource."""

    resource: str
    count: int


@value
class Request:
    """What a lease is to give. Two requests with one ``--id`` are the same if they are equal."""

    #: Each resource once, in the order of the caller.
    wanted: tuple[Wanted, ...]
    #: Exactly these devices; only with one resource, and as many as are wanted.
    ids: tuple[str, ...] = ()
    #: These devices and others; only with one resource.
    include: tuple[str, ...] = ()
    #: The pool from which the devices are taken; None for those that are in no pool.
    pool: str | None = None
    #: Words of the caller, ordered by key.
    labels: tuple[tuple[str, str], ...] = ()
    #: Whether a container is to use it, so that a CDI file is written.
    container: bool = False
    #: Count leased devices that their plugin no longer lists as free (see :mod:`.stock`).
    ignore_missing: bool = False
    #: Stop the process that owns the lease, by SIGTERM, when a device of it turns unhealthy.
    stop_on_unhealthy: bool = False
    #: The user to whom root, or the user of plugind, gives the lease; None for a caller's own.
    for_uid: int | None = None

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources of which it wants devices."""
        return tuple(wanted.resource for wanted in self.wanted)


def request_of(
    resources: Mapping[str, int],
    *,
    ids: Iterable[str] = (),
    include: Iterable[str] = (),
    labels: Mapping[str, str] | None = None,
    pool: str | None = None,
    ignore_missing: bool = False,
    stop_on_unhealthy: bool = False,
    container: bool = False,
    for_uid: int | None = None,
) -> Request:
    """Return what a lease is to give."""
    return Request(
        wanted=tuple(Wanted(name, count) for name, count in resources.items()),
        ids=tuple(ids),
        include=tuple(include),
        pool=pool,
        labels=tuple(sorted((labels or {}).items())),
        container=container,
        for_uid=for_uid,
        ignore_missing=ignore_missing,
        stop_on_unhealthy=stop_on_unhealthy,
    )


@value
class UserLimits:
    """How much of a resource or a pool each user other than root gets, and for how long; None is no limit."""

    #: The most devices at once.
    devices_per_user: int | None = None
    #: The most seconds from the grant on.
    longest_lease: float | None = None
    #: The most seconds in line.
    longest_wait: float | None = None
    #: Whether the owner of a lease is stopped when its longest time is over.
    stop_at_longest: bool = False
    #: Where the configuration has them: a file and a line, a variable or an option; empty if a program made it.
    source: str = ""


@value
class Pool:
    """Devices that are taken only by a request that names the pool."""

    name: str
    resource: str
    #: These devices; all of the resource if there are none.
    ids: frozenset[str] = frozenset()
    #: The users who may take from it; all if there are none. Root may always.
    uids: frozenset[int] = frozenset()
    limits: UserLimits = attrs.field(factory=UserLimits)

    def has(self, device: str) -> bool:
        """Whether a device of the resource is in it."""
        return not self.ids or device in self.ids

    @property
    def is_closed(self) -> bool:
        """Whether none but root may take from it."""
        return self.uids == {0}

    def admits(self, uid: int) -> bool:
        """Whether a user may take from it."""
        return not self.uids or uid in self.uids or uid == 0


# --- what the plugins have said ---------------------------------------------------------------------------------------


@value
class Mount:
    """A directory or file of the host that the container is to see."""

    host_path: str
    container_path: str
    read_only: bool = False


@value
class Node:
    """A device node of the host that the container is to have."""

    host_path: str
    container_path: str
    #: Any of ``r``, ``w`` and ``m``.
    permissions: str = "rw"


def identity_key(resource: str, device: str) -> str:
    """Return the key of a device in :attr:`.Answer.identities`."""
    return f"{resource}={device}"


@value
class Answer:
    """The answers to Allocate of all resources of a lease, joined."""

    env: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[Node, ...] = ()
    annotations: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Names of CDI devices, such as ``vendor.com/gpu=0``; a container engine resolves them.
    cdi_devices: tuple[str, ...] = ()
    #: What each static device was when it was given, by :func:`identity_key`.
    identities: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: The nodes that the user of the lease may open only because of it, by path, each with what it was.
    access: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    @property
    def needs_container(self) -> bool:
        """Whether something has another path inside of a container than outside: a plain process cannot use it."""
        moved: tuple[Mount | Node, ...] = (*self.mounts, *self.nodes)
        return any(edit.host_path != edit.container_path for edit in moved)


# --- the lease --------------------------------------------------------------------------------------------------------


#: The id that Slurm's prolog gives a lease, with the job and its user; only operators may use such ids.
_SLURM: Final = re.compile(r"slurm:[^:]+:[^:]+:(?P<job>[0-9]{1,10}):[0-9]+:(?P<uid>[0-9]{1,10}):")


class LeaseState(enum.StrEnum):
    """The states of a lease, by the names that users see."""

    #: It waits in line for devices.
    QUEUED = "queued"
    #: Its devices are being chosen.
    CHOOSING = "choosing"
    #: Its devices are fixed, and their plugins are asked to prepare them.
    PENDING = "pending"
    #: Its owner has the devices.
    HELD = "held"
    #: Whether a plugin has prepared its devices is not known: nobody gets them.
    UNCERTAIN = "uncertain"
    #: It has ended.
    GONE = "gone"


@value
class Lease:
    """One lease, as it is shown and stored; times of the wall clock are Unix seconds."""

    id: str
    #: The user who asked for it.
    uid: int
    request: Request
    owner: Owner
    state: LeaseState
    #: When it was asked for, by the wall clock.
    created: float
    #: The devices, by resource; empty until they are chosen.
    devices: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)
    #: What the plugins have said; None until it is held.
    answer: Answer | None = None
    #: The name of its CDI device, ``plugind/lease=NAME`` without what is before the name; None if it has none.
    cdi_name: str | None = None
    #: Why it is in its state, for ``queued``, ``uncertain`` and ``gone``.
    reason: str | None = None
    #: What its caller is told beside the answer.
    warnings: tuple[str, ...] = ()
    #: Until when an uncertain one withholds its devices, if its plugin does not end before; not stored.
    withheld_until: float | None = None
    #: When its longest time is over, by ``CLOCK_BOOTTIME`` in nanoseconds; None if it has none, or is not held yet.
    longest_until: int | None = None
    #: Whether that time is over, and its owner has not ended; not stored.
    overdue: bool = False

    @property
    def job(self) -> str | None:
        """The number of the Slurm job for which it is; None if it is for none, or that is not known."""
        found = _SLURM.match(self.id)
        return found["job"] if found else None

    @property
    def for_uid(self) -> int:
        """The user for whom it is: that of the job, if Slurm's prolog has asked for it as root."""
        found = _SLURM.match(self.id) if self.uid == 0 else None
        return uid if found and (uid := int(found["uid"])) < 2**32 - 1 else self.uid

    def moved(self, state: LeaseState, reason: str | None = None) -> Lease:
        """Return it in another state, as ``attrs.evolve`` does in four times the time; each lease moves four times."""
        return Lease(
            self.id,
            self.uid,
            self.request,
            self.owner,
            state,
            self.created,
            self.devices,
            self.answer,
            self.cdi_name,
            reason,
            self.warnings,
            longest_until=self.longest_until,
        )
