"""Whose turn it is, and which devices a request gets.

The line of those that wait for devices is in order of arrival, all or nothing. Who waits holds nothing. But those that
came later cannot take what it waits for: the devices that it names, and of others as many as it wants. So nobody
starves, and since nobody holds what another one waits for while it waits itself, there is no deadlock. One that asks
for more than the healthy devices that there are keeps nobody from anything: it may wait for ever.

A limit of a user is kept in the same order: what the user waits for counts, so a later request does not overtake an
earlier one of the same user by it. A request that the limit holds back reserves no devices, so other users overtake it.

Of the devices that are free a request gets those that must be included, those that the plugin prefers, and then others
by NUMA node and name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Set
from functools import partial
from itertools import chain, combinations, islice

import attrs

from ..plugins.devices import Device
from ..values import value
from .free import FreeDevices, Nodes, natural
from .stock import Place, Stock
from .values import Request, Wanted

#: How many are named that are before a request in line.
MOST_NAMED = 8
#: On a node with more NUMA nodes than this, not all sets of them are tried.
MANY_NODES = 8

# --- the line ---------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Reserved:
    """What is reserved for those that came earlier."""

    #: The devices that they have named, by resource.
    _named: defaultdict[str, set[str]] = attrs.field(factory=lambda: defaultdict(set))
    #: How many others they want.
    others: Counter[Place] = attrs.field(factory=Counter)
    #: How many devices each user wants, also by requests that a limit of the user holds back.
    by_user: Counter[tuple[int, Place]] = attrs.field(factory=Counter)

    def add(self, request: Request) -> None:
        """Reserve what a request wants."""
        named = request.ids or request.include
        for wanted in request.wanted:
            if named:
                self._named[wanted.resource].update(named)
            self.others[wanted.resource, request.pool] += wanted.count - len(named)

    def wait(self, stock: Stock, waiting: Waiting) -> None:
        """Reserve what one in line waits for, if the healthy devices are enough for it."""
        request = waiting.request
        if not stock.could(request):
            return
        if held_back(stock, self, request, waiting.uid) is None:
            self.add(request)
        if stock.limits:
            for wanted in request.wanted:
                self.by_user[waiting.uid, (wanted.resource, request.pool)] += wanted.count

    def named(self, resource: str) -> Set[str]:
        """Return the devices of a resource that earlier ones have named."""
        return self._named.get(resource, frozenset())


def available(stock: Stock, reserved: Reserved, request: Request, wanted: Wanted) -> int:
    """Return how many devices the request may have of a resource now."""
    free = stock.free((wanted.resource, request.pool))
    number = len(free) - sum(device_id in free for device_id in reserved.named(wanted.resource))
    if not request.ignore_missing:
        number -= len(stock.missing(wanted.resource))
    return max(0, number - reserved.others[wanted.resource, request.pool])


def fits(stock: Stock, reserved: Reserved, request: Request) -> bool:
    """Return whether the request can have all that it wants now."""
    named = request.ids or request.include
    for wanted in request.wanted:
        free, others = stock.free((wanted.resource, request.pool)), reserved.named(wanted.resource)
        if available(stock, reserved, request, wanted) < wanted.count:
            return False
        if not all(device_id in free and device_id not in others for device_id in named):
            return False
    return True


def held_back(stock: Stock, reserved: Reserved, request: Request, uid: int) -> Wanted | None:
    """Return what a limit of the user forbids to have now, beside what it has and waits for; None if nothing."""
    if not uid or not stock.limits:
        return None
    for wanted in request.wanted:
        place = wanted.resource, request.pool
        if (limits := stock.limits.get(place)) is None or limits.devices_per_user is None:
            continue
        if stock.had[uid, place] + reserved.by_user[uid, place] + wanted.count > limits.devices_per_user:
            return wanted
    return None


def can_have(stock: Stock, reserved: Reserved, request: Request, uid: int) -> bool:
    """Return whether the request of a user can have all that it wants now, by the devices and by the user's limits."""
    return fits(stock, reserved, request) and held_back(stock, reserved, request, uid) is None


@value
class Waiting:
    """One in line."""

    #: The number of its arrival.
    arrival: int
    request: Request
    uid: int


class LeaseLine:
    """The requests that wait, by the ids of their leases, the earliest first."""

    def __init__(self) -> None:
        self._waiting: dict[str, Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, lease: str) -> bool:
        return lease in self._waiting

    def add(self, lease: str, arrival: int, request: Request, uid: int = 0) -> None:
        """Put a request into the line, by the number of its arrival: one may come back that was in line before."""
        added = Waiting(arrival, request, uid)
        last = next(reversed(self._waiting.values()), added)
        self._waiting[lease] = added
        if last.arrival > arrival:
            self._waiting = dict(sorted(self._waiting.items(), key=lambda item: item[1].arrival))

    def remove(self, lease: str) -> None:
        """Forget a request, if it is in line."""
        self._waiting.pop(lease, None)

    def take_fitting(self, stock: Stock) -> Iterator[tuple[str, Reserved]]:
        """Remove and yield each request that can have what it wants, and what is reserved for those before it.

        Its devices are taken from ``stock`` before the next one is asked for.
        """
        for lease, waiting, reserved in self.waiting(stock):
            if can_have(stock, reserved, waiting.request, waiting.uid):
                del self._waiting[lease]
                yield lease, reserved

    def places(self, stock: Stock) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        """Yield each request, its place among those that want the same resources, and who is before it there.

        The earliest of those before it are named, up to :data:`MOST_NAMED`. A request for more devices than are healthy
        keeps nobody waiting, and is before nobody; nor is one that a limit of its user holds back.
        """
        before = defaultdict[str, list[str]](list)
        for lease, waiting, reserved in self.waiting(stock):
            request = waiting.request
            lists = [before[name] for name in request.resources]
            earlier = lists[0] if len(lists) == 1 else [*dict.fromkeys(chain.from_iterable(lists))]
            yield lease, len(earlier) + 1, tuple(earlier[:MOST_NAMED])
            if stock.could(request) and held_back(stock, reserved, request, waiting.uid) is None:
                for names in lists:
                    names.append(lease)

    def waiting(self, stock: Stock) -> Iterator[tuple[str, Waiting, Reserved]]:
        """Yield each request, and what is reserved for those before it that are still in line."""
        reserved = Reserved()
        for lease, waiting in [*self._waiting.items()]:
            yield lease, waiting, reserved
            if lease in self._waiting:
                reserved.wait(stock, waiting)

    def reserved_before(self, arrival: int, stock: Stock) -> Reserved:
        """Return what is reserved for those that are in line and came before the one with this number."""
        reserved = Reserved()
        for waiting in self._waiting.values():
            if waiting.arrival >= arrival:
                break
            reserved.wait(stock, waiting)
        return reserved


# --- the devices ------------------------------------------------------------------------------------------------------


def choose(
    free: FreeDevices,
    size: int,
    include: Collection[str] = (),
    preferred: Iterable[str] = (),
    without: Collection[str] = (),
) -> tuple[str, ...]:
    """Return ``size`` ids of ``free``, which has as many and those of ``include`` beside those ``without``.

    What the plugin has ``preferred`` is used as far as it is available. The others are devices of one NUMA node if
    there are enough, of as few nodes as possible otherwise, and devices of no node only when those are used up. Two
    shares of one static device are taken when no other device is left.
    """
    chosen = {device_id: free[device_id] for device_id in include}
    for device_id in preferred:
        if device_id in free and device_id not in without and len(chosen) < size:
            chosen[device_id] = free[device_id]
    if missing := size - len(chosen):
        used = chosen.keys() | without
        beside = frozenset(node for device in chosen.values() for node in device.numa)
        nodes = _nodes(free.number_near(used), missing, beside)
        others = free.in_order(partial(_distance, nodes), used)
        chosen |= {device.id: device for device in islice(_shares_last(others, [*chosen.values()]), missing)}
    return tuple(sorted(chosen, key=natural))


def _shares_last(devices: Iterable[Device], chosen: Iterable[Device]) -> Iterator[Device]:
    """Yield the devices, at the end those that are further shares of static devices, ``chosen`` or yielded before."""
    used, shares = {device.identity for device in chosen if device.identity}, list[Device]()
    for device in devices:
        if device.identity in used:
            shares.append(device)
            continue
        if device.identity:
            used.add(device.identity)
        yield device
    yield from shares


def _distance(nodes: Nodes, near: Nodes) -> tuple[bool, bool, int]:
    # Those that are near to other nodes too are kept for somebody who needs them.
    return nodes.isdisjoint(near), not near, len(near)


def _nodes(near: Counter[Nodes], size: int, beside: Nodes) -> Nodes:
    """Return the fewest NUMA nodes that have ``size`` devices, ``near`` those; those of ``beside`` are used anyway."""
    nodes = sorted(Nodes().union(*near) - beside)
    if len(nodes) > MANY_NODES:
        return _nodes_in_turn(near, size, beside)
    for number in range(len(nodes)):
        sets = map(beside.union, combinations(nodes, number))
        if enough := [some for some in sets if _number(near, some) >= size]:
            return max(enough, key=lambda some: min(size, _number_inside(near, some)))
    return beside.union(nodes)


def _nodes_in_turn(near: Counter[Nodes], size: int, beside: Nodes) -> Nodes:
    """Return NUMA nodes that have ``size`` devices, those with the most devices first."""
    sets = defaultdict[int, list[Nodes]](list)
    for some in near:
        for node in some:
            sets[node].append(some)
    used, found = set(beside), {some for node in beside for some in sets[node]}
    number = sum(near[some] for some in found)
    for node in sorted(sets.keys() - beside, key=lambda node: (-sum(near[some] for some in sets[node]), node)):
        if number >= size:
            break
        used.add(node)
        number += sum(near[some] for some in sets[node] if some not in found)
        found.update(sets[node])
    return frozenset(used)


def _number(near: Counter[Nodes], nodes: Nodes) -> int:
    return sum(number for some, number in near.items() if not nodes.isdisjoint(some))


def _number_inside(near: Counter[Nodes], nodes: Nodes) -> int:
    return sum(number for some, number in near.items() if some <= nodes)
