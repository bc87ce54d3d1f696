"""The grace of containers: one that has ended may be started again, and keeps its devices until others need them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .choosing import LeaseLine, can_have
from .stock import Stock
from .values import Lease

#: Seconds for which a lease stays after the end of its container.
GRACE: Final = 10.0


def needed_of(in_grace: Iterable[Lease], line: LeaseLine, stock: Stock) -> list[Lease]:
    """Return leases whose containers have ended, without which somebody in line can have all that it wants.

    The latest to end are kept if the others are enough. A device that is not listed any more is nobody's to give.
    """
    ended = [
        lease
        for lease in in_grace
        if not any(stock.missing(name).keys() & {*ids} for name, ids in lease.devices.items())
    ]
    needed: list[Lease] = []
    for _, waiting, reserved in line.waiting(stock):
        for lease in ended:
            stock.give_lease_back(lease)
        is_enough = can_have(stock, reserved, waiting.request, waiting.uid)
        for lease in reversed(ended):
            stock.take_lease(lease)
            if is_enough and not can_have(stock, reserved, waiting.request, waiting.uid):
                stock.give_lease_back(lease)
                needed.append(lease)
        for lease in needed:
            stock.take_lease(lease)
        if needed:
            break
    return needed
