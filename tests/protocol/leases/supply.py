"""Which devices there are for leases, and whose turn it is: the rules, in few words, for :mod:`.model`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import attrs

from plugind.protocol.leases.drains import DrainTarget
from plugind.protocol.leases.values import Lease, LeaseState, Pool, Request, UserLimits
from plugind.tests.protocol.leases.script import GPU, NIC

#: A device, with its resource.
Thing = tuple[str, str]
#: A resource, and a pool of it.
Place = tuple[str, str | None]

IDS = {GPU: ["g0", "g1", "g2", "g3"], NIC: ["n0"]}
POOL = Pool("big", GPU, frozenset(["g3"]))


def things(lease: Lease) -> set[Thing]:
    return {(name, device) for name, devices in lease.devices.items() for device in devices}


def places_of(lease: Lease) -> dict[Place, int]:
    return {(wanted.resource, lease.request.pool): wanted.count for wanted in lease.request.wanted}


@attrs.define(eq=False)
class Supply:
    """The devices that are listed, and those that wait for them."""

    _leases: Callable[[], tuple[Lease, ...]]
    #: In which order leases were asked for.
    arrivals: dict[str, int] = attrs.field(factory=dict)
    #: The ids that are listed, and those of them that are healthy.
    listed: dict[str, set[str]] = attrs.field(factory=dict)
    healthy: dict[str, set[str]] = attrs.field(factory=dict)
    #: The leases that count for nothing while the line is checked.
    _yielding: set[str] = attrs.field(factory=set)
    #: What operators were told is drained, and until when, if it ends by itself.
    drained: dict[DrainTarget, float | None] = attrs.field(factory=dict)
    limits: dict[Place, UserLimits] = attrs.field(factory=dict)

    def check_turn(self, lease: Lease, granted: list[Lease]) -> None:
        """One that was just given devices has left those that are not known to be free, and those for earlier ones."""
        assert not any(self.is_drained(*thing) for thing in things(lease)), "a device is given that is drained"
        assert not self.exceeds(lease), f"{lease} exceeds a limit of its user"
        held_back = self.held_back()
        earlier = [
            other
            for other in self.in_line()
            if self.arrival(other) < self.arrival(lease) and self.could(other.request) and other.id not in held_back
        ]
        others, named = reserved(other.request for other in earlier)
        assert named.isdisjoint(things(lease)), "a device is given that an earlier one has named"
        for wanted in lease.request.wanted:
            place = wanted.resource, lease.request.pool
            left = len(self.free(place) - {device_id for _, device_id in named})
            if not lease.request.ignore_missing:
                # Those after it may have taken devices that are not known to be free.
                left += sum(
                    len(holder.devices.get(place[0], ())) for holder in granted if holder.request.ignore_missing
                )
                left -= self.unlisted(lease.request, wanted.resource)
            assert left >= others[place], f"{lease} took what is not free, or what an earlier one waits for"

    def check_line(self, in_grace: set[str]) -> None:
        """Each one in line waits for something, which it has not without the leases whose containers have ended."""
        self._yielding = {
            lease.id
            for lease in self._leases()
            if lease.id in in_grace and all(device in self.listed[name] for name, device in things(lease))
        }
        others, named, held_back = Counter[Place](), set[Thing](), self.held_back()
        for lease in self.in_line():
            if lease.id in held_back:
                continue
            assert not self.fits(lease.request, others, named), f"{lease} waits for nothing"
            if self.could(lease.request):
                more, more_named = reserved([lease.request])
                others, named = others + more, named | more_named
        self._yielding = set()

    def held_back(self) -> set[str]:
        """Return those in line that are too much for their users, beside what these have and wait for already."""
        found, asked = set[str](), Counter[tuple[int, Place]]()
        for lease in self.in_line():
            if self.exceeds(lease, asked):
                found.add(lease.id)
            if self.could(lease.request):
                places = {(lease.uid, place): wanted for place, wanted in places_of(lease).items()}
                asked.update(places)
        return found

    def exceeds(self, lease: Lease, asked: Counter[tuple[int, Place]] | None = None) -> bool:
        """Whether its user has too much with this lease, and with what the user has ``asked`` for before."""
        own = [each for each in self._leases() if each.uid == lease.uid and each.id not in self._yielding]
        for place, wanted in places_of(lease).items():
            most = self.limits.get(place, UserLimits()).devices_per_user
            had = sum(
                len(each.devices.get(place[0], ()))
                for each in own
                if each.request.pool == place[1] and each.id != lease.id
            )
            before = 0 if asked is None else asked[lease.uid, place]
            if lease.uid and most is not None and had + before + wanted > most:
                return True
        return False

    def in_line(self) -> list[Lease]:
        return sorted((lease for lease in self._leases() if lease.state is LeaseState.QUEUED), key=self.arrival)

    def arrival(self, lease: Lease) -> int:
        return self.arrivals.get(lease.id, 1 << 60)

    def free(self, place: Place) -> set[str]:
        holders = (lease for lease in self._leases() if lease.id not in self._yielding)
        taken = {device for lease in holders for name, device in things(lease) if name == place[0]}
        return self.of(place) - taken

    def of(self, place: Place) -> set[str]:
        ids = {device_id for device_id in self.healthy[place[0]] if not self.is_drained(place[0], device_id)}
        return ids & POOL.ids if place[1] else ids - (POOL.ids if place[0] == GPU else set())

    def is_drained(self, resource: str, device: str) -> bool:
        return any(target.covers(resource, device) for target in self.drained)

    def unlisted(self, request: Request, resource: str) -> int:
        """Return how many devices may be those of leases, by other names."""
        if request.ignore_missing:
            return 0
        taken = {device for lease in self._leases() for name, device in things(lease) if name == resource}
        return len(taken - self.listed[resource])

    def could(self, request: Request) -> bool:
        named = {*request.ids, *request.include}
        ids = {wanted.resource: self.of((wanted.resource, request.pool)) for wanted in request.wanted}
        return all(
            len(ids[wanted.resource]) >= wanted.count and named <= ids[wanted.resource] for wanted in request.wanted
        )

    def fits(self, request: Request, others: Counter[Place], named: set[Thing]) -> bool:
        mine = {*request.ids, *request.include}
        for wanted in request.wanted:
            place = wanted.resource, request.pool
            free = {device_id for device_id in self.free(place) if (wanted.resource, device_id) not in named}
            left = len(free) - others[place] - self.unlisted(request, wanted.resource)
            if left < wanted.count or not mine <= free:
                return False
        return True


def reserved(requests: Iterator[Request] | list[Request]) -> tuple[Counter[Place], set[Thing]]:
    """Return what is reserved for those that wait: so many of each place, and the devices that they name."""
    others, named = Counter[Place](), set[Thing]()
    for request in requests:
        mine = {*request.ids, *request.include}
        for wanted in request.wanted:
            others[wanted.resource, request.pool] += wanted.count - len(mine)
            named |= {(wanted.resource, device) for device in mine}
    return others, named
