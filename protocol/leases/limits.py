"""What a request must be like, and how much one user may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs

from ..text import span_words
from .choosing import Reserved, held_back
from .config import LeaseLimits
from .messages import Failure, LeaseAsked, LeaseRules, Problem
from .replies import LimitMet
from .stock import Place, Pools, Stock
from .values import ContainerOwner, Lease, Owner, ProcessOwner, Request, TimeOwner, UserLimits, Wanted

#: Bytes of the name that a caller gives to a lease.
MAX_ID = 128
#: Seconds that a clock may be off when the rest of a wait is computed.
_ROUNDED = 0.001
#: How the ids begin that tools of operators give: Slurm's parts, the example for Nomad, and systemd's units. A guest
#: who had such an id first could keep a job or a service from its devices.
RESERVED_PREFIXES = ("slurm:", "nomad:", "nomad-", "unit:")


@attrs.define
class UserTotals:
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


# --- limits of users for a resource or a pool -------------------------------------------------------------------------


def limits_of(rules: LeaseRules) -> Mapping[Place, UserLimits]:
    """Return the limits of users by place; without a pool, a place is what is in no pool."""
    found: dict[Place, UserLimits] = {(name, None): resource.limits for name, resource in rules.resources.items()}
    found |= {(pool.resource, pool.name): pool.limits for pool in rules.pools}
    return {place: limits for place, limits in found.items() if limits != UserLimits()}


def _met(limits: UserLimits, place: Place, name: str) -> LimitMet:
    return LimitMet(name, getattr(limits, name), *place, limits.source)


def _limited(stock: Stock, request: Request, uid: int, name: str) -> Iterator[tuple[Wanted, LimitMet]]:
    """Yield the limits with this name that the user has for what a request wants; root has none."""
    for wanted in request.wanted if uid else ():
        place = wanted.resource, request.pool
        limits = stock.limits.get(place)
        if limits is not None and getattr(limits, name) is not None:
            yield wanted, _met(limits, place, name)


def over_limit(stock: Stock, request: Request, owner: Owner, uid: int, wait: float | None = None) -> Failure | None:
    """Return why a limit of the user will never allow a request, which waits for so many seconds."""
    for wanted, met in _limited(stock, request, uid, "devices_per_user"):
        if wanted.count > met.value:
            text = f"{wanted.count} of {wanted.resource} are asked for, and a user may have {met.value} at once"
            return Failure(Problem.LIMIT, f"{text} ({met.words})", limit=met)
    if isinstance(owner, TimeOwner):
        for wanted, met in _limited(stock, request, uid, "longest_lease"):
            if owner.seconds > met.value:
                asks, most = span_words(owner.seconds), span_words(met.value)
                text = f"a lease of {wanted.resource} for {asks} is asked for, and it lasts for {most} at most"
                return Failure(Problem.LIMIT, f"{text} ({met.words})", limit=met)
    if wait is not None:
        for wanted, met in _limited(stock, request, uid, "longest_wait"):
            if wait > met.value + _ROUNDED:
                asks, most = span_words(round(wait, 3)), span_words(met.value)
                text = f"a wait of {asks} for {wanted.resource} is asked for, and it lasts for {most} at most"
                return Failure(Problem.LIMIT, f"{text} ({met.words})", limit=met)
    return None


def why_held_back(stock: Stock, before: Reserved, request: Request, uid: int) -> tuple[str, LimitMet] | None:
    """Return why a limit of the user holds a request back that is in line; None if none does."""
    if (wanted := held_back(stock, before, request, uid)) is None:
        return None
    place = wanted.resource, request.pool
    met, waits = _met(stock.limits[place], place, "devices_per_user"), before.by_user[uid, place]
    text = f"it waits for a lease of its user to end: user {uid} has {stock.had[uid, place]} of {wanted.resource}"
    earlier = f", waits for {waits} before," if waits else ""
    return f"{text}{earlier} and may have {met.value} at once ({met.words})", met


def longest_of(stock: Stock, request: Request, uid: int) -> LimitMet | None:
    """Return the limit of how long the lease of a request lasts; None if there is none."""
    limits = (met for _, met in _limited(stock, request, uid, "longest_lease"))
    return min(limits, key=lambda met: met.value, default=None)


def stops_at_longest(stock: Stock, request: Request) -> bool:
    """Return whether the owner is stopped when the longest time of the lease of a request is over."""
    return any(stock.limits.get((name, request.pool), UserLimits()).stop_at_longest for name in request.resources)


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
