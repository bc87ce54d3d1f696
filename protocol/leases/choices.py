"""Which devices a lease takes from the stock, and what plugins are asked before.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import attrs

from ..messages.addresses import Address
from .choosing import choose
from .effects import Call
from .entries import Entry
from .line import Reserved, fits
from .messages import CallMessage, PreferenceAsked
from .stock import Stock
from .values import Wanted


@attrs.define(eq=False)
class Choices:
    """Chooses the devices of one lease after the other; plugins answer to ``inbox``."""

    _stock: Stock
    _inbox: Address[CallMessage]

    def choose(self, entry: Entry, reserved: Reserved) -> list[Call]:
        """Take devices for a lease, and return the calls to the plugins that may prefer others."""
        entry.preferred.clear()
        self._take(entry, reserved)
        calls = [it for wanted in entry.lease.request.wanted if (it := self._call(entry, wanted, reserved))]
        entry.asked = {it.call.resource for it in calls}
        return calls

    def choose_again(self, entry: Entry, reserved: Reserved) -> bool:
        """Choose anew among all that is there by now, as the plugins prefer; return whether it is enough."""
        self.give_back(entry)
        entry.lease = attrs.evolve(entry.lease, devices={})
        if not fits(self._stock, reserved, entry.lease.request):
            return False
        self._take(entry, reserved)
        return True

    def give_back(self, entry: Entry) -> None:
        """Take its devices from a lease."""
        for name, ids in entry.devices.items():
            self._stock.give_back(name, ids)

    def _take(self, entry: Entry, reserved: Reserved) -> None:
        request, devices = entry.lease.request, {}
        for wanted in request.wanted:
            name = wanted.resource
            free, preferred = self._stock.free((name, request.pool)), entry.preferred.get(name, ())
            devices[name] = request.ids or choose(free, wanted.count, request.include, preferred, reserved.named(name))
        for name, ids in devices.items():
            self._stock.take(entry.lease.id, name, ids)
        entry.lease = attrs.evolve(entry.lease, devices=devices)

    def _call(self, entry: Entry, wanted: Wanted, reserved: Reserved) -> Call | None:
        name, request = wanted.resource, entry.lease.request
        if request.ids or not self._stock.options(name).get_preferred_allocation_available:
            return None
        others = self._stock.free((name, request.pool)).keys() - reserved.named(name)
        if not others:
            return None  # There is no choice.
        available = tuple(sorted(others.union(entry.devices[name])))
        asked = PreferenceAsked(entry.lease.id, name, available, request.include, wanted.count, self._inbox)
        return Call(self._stock.calls(name), asked)
