"""The line of those that wait for devices: in order of arrival, all or nothing.

Who waits holds nothing. But those that came later cannot take what it waits for: the devices that it names, and of
others as many as it wants. So nobody starves, and since nobody holds what another one waits for while it waits itself,
there is no deadlock. One that asks for more than the healthy devices that there are keeps nobody from anything: it may
wait for ever.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import attrs

from .stock import Place, Stock
from .values import Request, Wanted


@attrs.define(eq=False)
class Reserved:
    """What is reserved for those that came earlier."""

    #: Devices that they have named, with their resources.
    named: set[tuple[str, str]] = attrs.field(factory=set)
    #: How many others they want.
    others: Counter[Place] = attrs.field(factory=Counter)

    def add(self, request: Request) -> None:
        """Reserve what a request wants."""
        named = request.ids or request.include
        for wanted in request.wanted:
            self.named.update((wanted.resource, device_id) for device_id in named)
            self.others[wanted.resource, request.pool] += wanted.count - len(named)

    def has(self, resource: str, device: str) -> bool:
        """Whether an earlier one has named the device."""
        return (resource, device) in self.named


def available(stock: Stock, reserved: Reserved, request: Request, wanted: Wanted) -> int:
    """Return how many devices the request may have of a resource now."""
    free = stock.free((wanted.resource, request.pool))
    number = len(free)
    if reserved.named:
        number -= sum(resource == wanted.resource and device_id in free for resource, device_id in reserved.named)
    if not request.ignore_missing:
        number -= stock.unlisted(wanted.resource)
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


class Line:
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

    def reserved_before(self, lease: str, stock: Stock) -> Reserved:
        """Return what is reserved for those before one that is in line."""
        reserved = Reserved()
        for other, (_, request) in self._waiting.items():
            if other == lease:
                break
            if stock.could(request):
                reserved.add(request)
        return reserved
