"""What must hold of those that wait for devices, by what is shown of leases and devices.

A later one takes nothing that an earlier one waits for, and the first that can have what it wants has it. A request
that is too much for its user, beside what the user has and waits for before, keeps nobody waiting. What is shown at one
time may have happened in any order. So only what was so before that time and is so after it counts.
"""

from __future__ import annotations

import itertools
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import attrs
import trio

from plugind.protocol.leases.values import Lease, LeaseState, Pool, Request
from plugind.protocol.plugins.devices import ResourceState, ResourceStatus
from plugind.tests.fuzz.lease_holders import LABEL, Asking, things
from plugind.tests.fuzz.preparation_oracle import Thing

#: Seconds for which devices may be free that somebody waits for.
LATE: Final = 2.0


@attrs.define
class _Resource:
    """The devices of one resource, as they are shown."""

    #: All that are listed, and those that are well; none while it is lost.
    listed: frozenset[str] = frozenset()
    healthy: frozenset[str] = frozenset()
    #: All that were well at any time of this instant, and all that were so at all times of it.
    ever: frozenset[str] = frozenset()
    always: frozenset[str] = frozenset()


def _same(leases: Mapping[str, Lease], lease: Lease) -> Lease | None:
    """Return this lease as it is among ``leases``; None if none or another one has its id there."""
    found = leases.get(lease.id)
    return found if found is not None and found.request == lease.request and found.created == lease.created else None


class LineOracle:
    """Who waits is neither overtaken nor starved; and no device is given away that is not well, or too much for a user.

    Of the resources in ``limits``, each user but root may have so many devices that are in no pool.
    """

    def __init__(
        self,
        violated: Callable[[str, str], None],
        pools: Iterable[Pool],
        limits: Mapping[str, int] = types.MappingProxyType({}),
    ) -> None:
        self._violated = violated
        self._pools = tuple(pools)
        self._limits = limits
        #: When each label was asked for, and its place in the order of arrival.
        self._arrivals: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        self._numbers = itertools.count(1)
        self._resources: dict[str, _Resource] = {}
        #: The leases at the end of the last instant, and now.
        self._before: dict[str, Lease] = {}
        self._now: dict[str, Lease] = {}
        #: Those that were taken over from an earlier daemon when it was known what that had.
        self._taken_over: set[str] = set()
        self._time = 0.0
        #: Since when each could have what it waits for.
        self._fits_since: dict[str, float] = {}
        #: Until when nothing is expected of those that wait.
        self._grace = 0.0

    def asks(self, asking: Asking) -> None:
        """Somebody asks for a lease."""
        self._arrivals[dict(asking.request.labels)[LABEL]].append((asking.asked, next(self._numbers)))

    def forget(self, leases: Iterable[Lease] = ()) -> None:
        """Begin anew, with these leases: the daemon has started, or all leases are shown."""
        self._before = {lease.id: lease for lease in leases}
        self._now = dict(self._before)
        self._fits_since.clear()

    def disturbed(self, pause: float) -> None:
        """The lease actor may be late for so many seconds."""
        self._grace = max(self._grace, trio.current_time() + pause)
        self._fits_since.clear()

    # --- what is shown ------------------------------------------------------------------------------------------------

    def look(self, lease: Lease) -> None:
        """A lease is shown as it is now."""
        self.pass_time()
        if lease.id not in self._now and lease.state in (LeaseState.HELD, LeaseState.UNCERTAIN):
            self._taken_over.add(lease.id)
        if lease.state is LeaseState.GONE:
            self._now.pop(lease.id, None)
            self._taken_over.discard(lease.id)
        else:
            self._now[lease.id] = lease

    def look_at_devices(self, status: ResourceStatus) -> None:
        """A resource is shown as it is now."""
        self.pass_time()
        resource = self._resources.setdefault(status.name, _Resource())
        resource.listed = frozenset(status.listed.devices)
        well = frozenset(device.id for device in status.devices() if device.healthy)
        resource.healthy = well if status.state is ResourceState.LISTED else frozenset()
        resource.ever |= resource.healthy
        resource.always &= resource.healthy

    def look_at_all_devices(self, statuses: Collection[ResourceStatus]) -> None:
        """All resources are shown: no other one has devices, whatever an earlier daemon has shown."""
        self.pass_time()
        for name in self._resources.keys() - {status.name for status in statuses}:
            self._resources[name] = _Resource(ever=self._resources[name].ever)
        for status in statuses:
            self.look_at_devices(status)

    def pass_time(self) -> None:
        """Judge what was shown at the last instant, if that is over."""
        now = trio.current_time()
        if now == self._time:
            return
        self._judge()
        self._time, self._before = now, dict(self._now)
        for resource in self._resources.values():
            resource.ever = resource.always = resource.healthy

    # --- what is judged -----------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        for lease in self._now.values():
            before = _same(self._before, lease)
            is_new = lease.devices and lease.id not in self._taken_over
            if is_new and (before is None or before.devices != lease.devices):
                self._check_grant(lease, before)
        self._check_starving()

    def _check_grant(self, lease: Lease, before: Lease | None) -> None:
        """Check a lease that has got devices, or others than it had when they were chosen first."""
        for resource, device in sorted(things(lease)):
            if device not in self._resources.get(resource, _Resource()).ever:
                self._violated("unwell", f"{device} of {resource} is given to {lease.id}, and is not well")
        if before is not None and before.devices:
            return
        if self._is_too_much(lease, [kept for kept in self._kept() if kept.id != lease.id]):
            self._violated("limit", f"{lease.id} has {lease.devices}, and user {lease.uid} has too many")
        ever = [*self._before.values(), *(now for now in self._now.values() if _same(self._before, now) != now)]
        for waiting in self._waiting(self._before):
            if self._is_too_much(waiting, self._beside(waiting, ever)):
                continue
            if self._arrival(waiting) < self._arrival(lease) and self._is_overtaken(waiting, lease):
                text = f"{lease.id} has {lease.devices}, and {waiting.id}, which came earlier, waits for"
                self._violated("line", f"{text} {waiting.request}")

    def _beside(self, waiting: Lease, leases: Iterable[Lease]) -> list[Lease]:
        """Return the leases that count for the user of one that waits: those with devices, and those before it."""
        arrival = self._arrival(waiting)
        return [
            lease
            for lease in leases
            if lease.devices or (lease.state is LeaseState.QUEUED and self._arrival(lease) < arrival)
        ]

    def _is_too_much(self, lease: Lease, beside: Iterable[Lease]) -> bool:
        """Whether a user would have too much with a lease ``beside`` others."""
        if lease.uid == 0 or lease.request.pool is not None:
            return False
        counts = Counter[str]()
        for each in (lease, *(other for other in beside if other.uid == lease.uid and other.request.pool is None)):
            counts.update({wanted.resource: wanted.count for wanted in each.request.wanted})
        return any(counts[name] > most for name, most in self._limits.items() if name in lease.request.resources)

    def _is_overtaken(self, waiting: Lease, lease: Lease) -> bool:
        """Whether ``lease`` has devices that were there for one that waits, whoever else got some before."""
        still = _same(self._now, waiting)
        if still is None or still.state is not LeaseState.QUEUED:
            return False
        always = {name: resource.always for name, resource in self._resources.items()}
        if waiting.request.pool != lease.request.pool or not self._could(waiting.request, always):
            return False
        named = waiting.request.ids or waiting.request.include
        for wanted in waiting.request.wanted:
            if {(wanted.resource, device) for device in named} & things(lease):
                return True
            given = lease.devices.get(wanted.resource, ())
            kept = {thing for kept in self._kept() for thing in things(kept)}
            there = [
                device
                for device in self._resources[wanted.resource].ever
                if (wanted.resource, device) not in kept and self._pool(wanted.resource, device) == lease.request.pool
            ]
            others = wanted.count - len(named)
            if given and len(there) - others < len(given):
                return True
        return False

    def _kept(self) -> list[Lease]:
        """Return the leases that have had their devices throughout the instant."""
        both = ((lease, _same(self._now, lease)) for lease in self._before.values() if lease.devices)
        return [lease for lease, now in both if now is not None and now.devices]

    def _could(self, request: Request, devices: Mapping[str, frozenset[str]]) -> bool:
        """Whether these devices were enough, if nobody had any."""
        for wanted in request.wanted:
            well = self._in_pool(wanted.resource, devices.get(wanted.resource, frozenset()), request)
            if len(well) < wanted.count or not set(request.ids or request.include) <= well:
                return False
        return True

    def _check_starving(self) -> None:
        now = self._time
        reserved: list[Request] = []
        fitting = set()
        healthy = {name: resource.healthy for name, resource in self._resources.items()}
        taken = {thing for lease in self._now.values() for thing in things(lease)}
        for waiting in self._waiting(self._now):
            could = [each for each in self._now.values() if each.devices or self._could(each.request, healthy)]
            if self._is_too_much(waiting, self._beside(waiting, could)):
                continue
            if self._fits(waiting.request, taken, reserved):
                fitting.add(waiting.id)
            elif self._could(waiting.request, healthy):
                reserved.append(waiting.request)
        self._fits_since = {lease_id: self._fits_since.get(lease_id, now) for lease_id in fitting}

    def _fits(self, request: Request, taken: set[Thing], reserved: Iterable[Request]) -> bool:
        named = set(request.ids or request.include)
        for wanted in request.wanted:
            resource = self._resources.get(wanted.resource, _Resource())
            well = self._in_pool(wanted.resource, resource.healthy, request)
            free = {device for device in well if (wanted.resource, device) not in taken}
            kept_for_others = 0
            for other in reserved:
                names = set(other.ids or other.include)
                free -= names if any(theirs.resource == wanted.resource for theirs in other.wanted) else set()
                if other.pool == request.pool:
                    kept_for_others += sum(
                        theirs.count - len(names) for theirs in other.wanted if theirs.resource == wanted.resource
                    )
            unlisted = sum(name == wanted.resource and device not in resource.listed for name, device in taken)
            missing = 0 if request.ignore_missing else unlisted
            if len(free) - kept_for_others - missing < wanted.count or not named <= free:
                return False
        return True

    def check(self) -> None:
        """Check that nobody waits for what is there."""
        self.pass_time()
        now = trio.current_time()
        for lease, since in [*self._fits_since.items()]:
            if lease in self._now and now > max(since, self._grace) + LATE:
                self._violated("line", f"{lease} waits since {since:g} for what is there: {self._now[lease].request}")
                del self._fits_since[lease]

    def _waiting(self, leases: Mapping[str, Lease]) -> list[Lease]:
        waiting = [lease for lease in leases.values() if lease.state is LeaseState.QUEUED]
        return sorted(waiting, key=self._arrival)

    def _arrival(self, lease: Lease) -> int:
        """Return the place of the first who asked when the lease was made; others may have joined."""
        askings = self._arrivals[dict(lease.request.labels)[LABEL]]
        made = max(asked for asked, _ in askings if asked <= lease.created)
        return min(number for asked, number in askings if asked == made)

    def _in_pool(self, resource: str, devices: Iterable[str], request: Request) -> set[str]:
        return {device for device in devices if self._pool(resource, device) == request.pool}

    def _pool(self, resource: str, device: str) -> str | None:
        return next((pool.name for pool in self._pools if pool.resource == resource and pool.has(device)), None)
