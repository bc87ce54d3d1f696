"""What a request must be like, and how much one user may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from .config import LeaseLimits
from .messages import Failure, LeaseAsked, Problem
from .stock import Pools
from .values import ContainerOwner, Lease, ProcessOwner, Request, TimeOwner

#: Bytes of the name that a caller gives to a lease.
MAX_ID = 128
#: How the ids begin that tools of operators give: Slurm's parts, the example for Nomad, and systemd's units. A guest
#: who had such an id first could keep a job or a service from its devices.
RESERVED_PREFIXES = ("slurm:", "nomad:", "nomad-", "unit:")


@attrs.define
class Usage:
    """What each user has."""

    leases: Counter[int] = attrs.field(factory=Counter)
    devices: Counter[int] = attrs.field(factory=Counter)
    label_bytes: Counter[int] = attrs.field(factory=Counter)

    def add(self, lease: Lease, sign: int = 1) -> None:
        """Count a lease, or with ``sign`` -1 count it no more."""
        numbers = 1, devices_of(lease.request), label_bytes_of(lease.request)
        for counter, number in zip((self.leases, self.devices, self.label_bytes), numbers, strict=True):
            counter[lease.uid] += sign * number
            if not counter[lease.uid]:
                del counter[lease.uid]

    def failure(self, limits: LeaseLimits, asked: LeaseAsked) -> Failure | None:
        """Return why another lease would be too much."""
        if self.leases.total() >= limits.all_leases:
            text = f"there are {limits.all_leases} leases, and there may not be more: release some"
        elif asked.uid and self.leases[asked.uid] >= limits.leases:
            text = f"user {asked.uid} has {limits.leases} leases, and may not have more: release some"
        elif asked.uid and self.devices[asked.uid] + devices_of(asked.request) > limits.devices:
            text = f"user {asked.uid} may not have more than {limits.devices} devices: release some, or ask for fewer"
        elif asked.uid and self.label_bytes[asked.uid] + label_bytes_of(asked.request) > limits.label_bytes:
            text = (
                f"the labels of user {asked.uid} may not have more than {limits.label_bytes} bytes in all"
                " (limit leases.limits.label_bytes): release some leases, or ask with shorter labels"
            )
        else:
            return None
        return Failure(Problem.LIMIT, text)


def label_bytes_of(request: Request) -> int:
    """Return how many bytes the labels of a request have."""
    return sum(len(text.encode("utf-8", "surrogatepass")) for label in request.labels for text in label)


def devices_of(request: Request) -> int:
    """Return how many devices a request wants."""
    return sum(wanted.count for wanted in request.wanted)


def failure_of(asked: LeaseAsked, pools: Pools) -> Failure | None:
    """Return what is wrong with a request by itself."""
    if text := _wrong_id(asked.id) or _wrong(asked.request) or _wrong_owner(asked):
        return Failure(Problem.USAGE, text)
    return pool_failure_of(asked.request, asked.uid, pools)


def reserved_failure_of(name: str | None, uid: int, operators: frozenset[int]) -> Failure | None:
    """Return why a user may not give a new lease this name."""
    prefix = next((prefix for prefix in RESERVED_PREFIXES if name is not None and name.startswith(prefix)), None)
    if prefix is None or uid in operators:
        return None
    return Failure(Problem.FORBIDDEN, f"ids that begin with {prefix} are for root's tools: give the lease another id")


def pool_failure_of(request: Request, uid: int, pools: Pools) -> Failure | None:
    """Return why a user may have no devices from the pool that a request names."""
    if (name := request.pool) is None:
        return None
    for wanted in request.wanted:
        pool = pools.find(wanted.resource, name)
        if pool is None:
            return Failure(Problem.USAGE, f"there is no pool {name} of {wanted.resource}")
        if not pool.admits(uid):
            return Failure(Problem.FORBIDDEN, f"user {uid} may not take devices from the pool {name}")
    return None


def _wrong_id(name: str | None) -> str | None:
    if name is None or (name.isprintable() and not name.startswith("-") and 0 < len(name.encode()) <= MAX_ID):
        return None
    return f"the id of a lease has 1 to {MAX_ID} bytes of printable text, and does not begin with '-'"


def _wrong(request: Request) -> str | None:
    named, resources = request.ids or request.include, [wanted.resource for wanted in request.wanted]
    if not request.wanted or any(wanted.count < 1 for wanted in request.wanted):
        return "a lease has at least one device: name a resource and a number, such as vendor.com/gpu=1"
    if (twice := _twice(resources)) is not None:
        return f"{twice} is named twice: add up the numbers"
    if not named:
        return None
    if len(request.wanted) > 1 or (request.ids and request.include):
        return "devices can be named for one resource only, and by --ids or --include"
    if (twice := _twice(named)) is not None:
        return f"the device {twice} is named twice"
    count = request.wanted[0].count
    wanted = f"{count} of {resources[0]} are wanted"
    if request.ids and len(named) != count:
        return f"--ids names {len(named)} devices, and {wanted}"
    return f"--include names {len(named)} devices, and {wanted}" if len(named) > count else None


def _twice(names: Sequence[str]) -> str | None:
    """Return the first name that comes again; the usual request has one, or few that are different."""
    if len(set(names)) == len(names):
        return None
    return next(name for place, name in enumerate(names) if name in names[:place])


def _wrong_owner(asked: LeaseAsked) -> str | None:
    if asked.request.stop_on_unhealthy and not isinstance(asked.owner, ProcessOwner):
        return "--stop-on-unhealthy stops the process that owns the lease, and this lease is to have none: use -- CMD"
    match asked.owner:
        case ContainerOwner() if not asked.request.container or asked.owner.init is not None:
            return "a lease of a container is bound to it by the hook of its CDI file: ask for a container"
        case ContainerOwner(start_within=seconds) if seconds is not None and not 0 < seconds < 2**31:
            return "a container has more than 0 seconds to start, and less than 68 years"
        case TimeOwner() if not 0 < asked.owner.seconds < 2**31:
            return "a lease that ends at a time lasts for more than 0 seconds, and less than 68 years"
        case _:
            return None
