"""The line of those that wait for devices: in order of arrival, all or nothing.

Who waits holds nothing. But those that came later cannot take what it waits for: the devices that it names, and of
others as many as it wants. So nobody starves, and since nobody holds what another one waits for while it waits itself,
there is no deadlock. One that asks for more than the healthy devices that there are keeps nobody from anything: it may
wait for ever.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Set

import attrs

from .stock import Place, Stock
from .values import Request, Wanted


@attrs.define(eq=False)
class Reserved:
    """What is reserved for those that came earlier."""

    #: The devices that they have named, by resource.
    _named: defaultdict[str, set[str]] = attrs.field(factory=lambda: defaultdict(set))
    #: How many others they want.
    others: Counter[Place] = attrs.field(factory=Counter)

    def add(self, request: Request) -> None:
        """Reserve what a request wants."""
        named = request.ids or request.include
        for wanted in request.wanted:
            if named:
                self._named[wanted.resource].update(named)
            self.others[wanted.resource, request.pool] += wanted.count - len(named)

    def named(self, resource: str) -> Set[str]:
        """Return the devices of a resource that earlier ones have named."""
        return self._named.get(resource, frozenset())

    def has(self, resource: str, device: str) -> bool:
        """Whether an earlier one has named the device."""
        return device in self.named(resource)


def available(stock: Stock, reserved: Reserved, request: Request, wanted: Wanted) -> int:
    """Return how many devices the request may have of a resource now."""
    free = stock.free((wanted.resource, request.pool))
    number = len(free) - sum(device_id in free for device_id in reserved.named(wanted.resource))
    if not request.ignore_missing:
        number -= len(stock.missing(wanted.resource))
    return max(0, number - reserved.others[wanted.resource, request.pool])


def fits(stock: Stock, reserved: Reserved, request: Request) -> bool:
    """Return whether the request can have all that it wants now."""
    return all(_fits(stock, reserved, request, wanted) for wanted in request.wanted)


def _fits(stock: Stock, reserved: Reserved, request: Request, wanted: Wanted) -> bool:
    free = stock.free((wanted.resource, request.pool))
    named = request.ids or request.include
    return available(stock, reserved, request, wanted) >= wanted.count and all(
        device_id in free and not reserved.has(wanted.resource, device_id) for device_id in named
    )


class LeaseLine:
    """The requests that wait, by the ids of their leases, the earliest first."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[int, Request]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, lease: str) -> bool:
        return lease in self._waiting

    def add(self, lease: str, arrival: int, request: Request) -> None:
        """Put a request into the line, by the number of its arrival: one may come back that was in line before."""
        last = next(reversed(self._waiting.values()), (arrival, request))
        self._waiting[lease] = arrival, request
        if last[0] > arrival:
            self._waiting = dict(sorted(self._waiting.items(), key=lambda item: item[1][0]))

    def remove(self, lease: str) -> None:
        """Forget a request, if it is in line."""
        self._waiting.pop(lease, None)

    def take_fitting(self, stock: Stock) -> Iterator[tuple[str, Reserved]]:
        """Remove and yield each request that can have what it wants, and what is reserved for those before it.

        Its devices are taken from ``stock`` before the next one is asked for.
        """
        reserved = Reserved()
        for lease, (_, request) in [*self._waiting.items()]:
            if fits(stock, reserved, request):
                del self._waiting[lease]
                yield lease, reserved
            elif stock.could(request):
                reserved.add(request)

    def reserved_before(self, arrival: int, stock: Stock) -> Reserved:
        """Return what is reserved for those that are in line and came before the one with this number."""
        reserved = Reserved()
        for number, request in self._waiting.values():
            if number >= arrival:
                break
            if stock.could(request):
                reserved.add(request)
        return reserved
