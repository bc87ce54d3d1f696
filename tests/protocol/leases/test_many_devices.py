"""What a lease costs if a resource has 10,000 devices: no more than if it has 100.

Nothing here measures time. The cost is the number of steps of the interpreter, which its tracing counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from plugind.protocol.leases import messages as m
from plugind.protocol.leases.stock import Stock
from plugind.protocol.plugins.devices import DeviceList
from plugind.tests.protocol.leases.script import GPU, PLUGIN, Calls, devices, offer, request
from plugind.tests.protocol.leases.test_book import Node

FEW, MANY = 100, 10_000
#: What a search in an ordered list takes longer if it has a hundred times as many entries.
MORE = 1.5


def steps(action: Callable[[], object]) -> int:
    """Return how many steps the interpreter makes for ``action``."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Callable[..., Any]:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def listed(number: int, end: str = "") -> DeviceList:
    return DeviceList(devices(*(f"GPU-{at}@{at % 2}{end}" for at in range(number))))


def offered(list_of: DeviceList) -> m.OfferChanged:
    return m.OfferChanged(m.Offer(GPU, list_of, PLUGIN, calls=Calls()))


class Case:
    """A node with so many devices, of which many were leased before: from then on they are in order."""

    def __init__(self, number: int) -> None:
        self.node = Node()
        self.listed = listed(number)
        self.number = number
        self.node.send(offered(self.listed))
        self.node.release(self.node.hold(request((GPU, number - 2)), uid=0).id, uid=0)


def lease(case: Case) -> Callable[[], object]:
    """One device is leased and given back."""
    return lambda: case.node.release(case.node.hold().id)


def lease_named(case: Case) -> Callable[[], object]:
    """Two devices are leased, one of which is named."""
    return lambda: case.node.hold(request((GPU, 2), include="GPU-77"))


def lease_waited_for(case: Case) -> Callable[[], object]:
    """One device is leased while somebody waits for more devices than there are."""
    case.node.ask(request((GPU, case.number + 1)), wait=100.0, uid=0)
    return case.node.hold


def change_health(case: Case) -> Callable[[], object]:
    """One device turns unhealthy."""
    changed = offered(case.listed.replacing(devices("GPU-7@1!")))
    return lambda: case.node.send(changed)


def lose_plugin(case: Case) -> Callable[[], object]:
    """The plugin is lost, and comes back with the same list."""
    lost, back = m.OfferChanged(m.Offer(GPU, case.listed)), offered(case.listed)
    return lambda: (case.node.send(lost), case.node.send(back))


@pytest.mark.parametrize("act", [lease, lease_named, lease_waited_for, change_health, lose_plugin])
def test_what_a_lease_costs_does_not_grow_with_the_devices(act: Callable[[Case], Callable[[], object]]) -> None:
    few, many = (steps(act(Case(number))) for number in (FEW, MANY))
    assert few > 100
    assert many < MORE * few


@pytest.mark.parametrize("number", [FEW, MANY])
def test_a_failure_names_some_holders_without_a_look_at_all(number: int) -> None:
    """The first ones that are found are enough."""
    stock = Stock()
    stock.offer(offer([f"g{at}" for at in range(number)]))
    for at in range(number):
        stock.take(f"lease-{at}", GPU, [f"g{at}"])
    found: list[str] = []

    def take_some() -> None:
        for holder, _ in zip(stock.holders([GPU]), range(10), strict=False):
            found.append(holder)

    assert steps(take_some) < 500
    assert found == [f"lease-{at}" for at in range(10)]
