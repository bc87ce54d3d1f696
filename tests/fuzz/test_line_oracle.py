"""The oracle of lines: who waits for devices, and is overtaken."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.leases.values import Lease, LeaseState, NoOwner, Request, Wanted
from plugind.protocol.plugins.devices import HEALTHY, Device, DeviceList, ResourceState, ResourceStatus
from plugind.tests.fuzz.lease_holders import LABEL, Asking
from plugind.tests.fuzz.line_oracle import LATE, LineOracle

GPU = "lab.com/gpu"


@attrs.define
class Found:
    """What an oracle has found."""

    rules: list[str] = attrs.field(factory=list)

    def violated(self, rule: str, _text: str) -> None:
        self.rules.append(rule)


@pytest.mark.parametrize("is_shown", [True, False])
async def test_nobody_waits_for_devices_that_only_an_earlier_daemon_has_shown(
    autojump_clock: MockClock, is_shown: bool
) -> None:
    """Seed 2700660: that daemon was killed before it kept the resource."""
    found, status = Found(), ResourceStatus(GPU, ResourceState.LISTED, 0.0, listed=DeviceList([Device("d0", HEALTHY)]))
    status = attrs.evolve(status, changed={"d0": 0.0})
    oracle = LineOracle(found.violated, ())
    oracle.look_at_devices(status)
    await trio.sleep(1.0)
    oracle.forget()
    oracle.look_at_all_devices([status] if is_shown else [])
    request = Request((Wanted(GPU, 1),), labels=((LABEL, "1"),))
    oracle.asks(Asking(1, request, NoOwner(), 0, trio.current_time(), None, None, lambda *_: None))
    oracle.look(Lease("job", 0, request, NoOwner(), LeaseState.QUEUED, trio.current_time()))
    for _ in range(2):
        await trio.sleep(LATE + 1.0)
        oracle.check()
    assert set(found.rules) == ({"line"} if is_shown else set())


@pytest.mark.parametrize("is_released", [True, False])
async def test_who_waits_is_not_overtaken_if_it_is_released_and_its_id_is_used_again(
    autojump_clock: MockClock, is_released: bool
) -> None:
    """Seed 4104341: all of that in one instant."""
    found, devices = Found(), DeviceList([Device("d0", HEALTHY), Device("d1", HEALTHY)])
    oracle = LineOracle(found.violated, ())
    status = ResourceStatus(GPU, ResourceState.LISTED, 0.0, listed=devices)
    oracle.look_at_devices(attrs.evolve(status, changed={"d0": 0.0, "d1": 0.0}))

    def asked(number: int, lease: str, count: int) -> Lease:
        request = Request((Wanted(GPU, count),), labels=((LABEL, str(number)),))
        oracle.asks(Asking(number, request, NoOwner(), 0, trio.current_time(), lease, None, lambda *_: None))
        return Lease(lease, 0, request, NoOwner(), LeaseState.QUEUED, trio.current_time())

    oracle.look(asked(1, "first", 2))
    await trio.sleep(1.0)
    later = asked(2, "later", 1)
    oracle.look(later)
    await trio.sleep(1.0)
    if is_released:
        oracle.look(asked(3, "first", 2))
    oracle.look(attrs.evolve(later, state=LeaseState.HELD, devices={GPU: ("d0",)}))
    await trio.sleep(1.0)
    oracle.pass_time()
    assert found.rules == ([] if is_released else ["line"])
