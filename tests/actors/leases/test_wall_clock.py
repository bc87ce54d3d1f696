"""The lease actor with all its parts, and a wall clock that jumps."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from plugind.actors.io.node_access import NodeAccess
from plugind.actors.leases.cdi_writer import MemoryCdiStore
from plugind.actors.leases.store import MemoryLeaseStore
from plugind.actors.leases.unit import LeasePorts, LeaseUnit
from plugind.actors.simulation.device_nodes import MemoryNodes
from plugind.actors.simulation.lease_owners import MemoryBootClock, MemoryOwnerProcesses
from plugind.protocol.leases import messages as m
from plugind.protocol.leases.config import LeasesConfig
from plugind.protocol.leases.replies import Failure
from plugind.protocol.leases.values import (
    Answer,
    Lease,
    LeaseState,
    NoOwner,
    Owner,
    Request,
    TimeOwner,
    Wanted,
)
from plugind.protocol.logs.lines import SILENT
from plugind.protocol.plugins.devices import Device, DeviceList

GPU = "vendor.com/gpu"


@attrs.define(eq=False)
class Running:
    """A lease actor whose plugin answers at once."""

    unit: LeaseUnit
    processes: MemoryOwnerProcesses
    #: What is to be added to the wall clock.
    jump: list[float]
    tickets: itertools.count[int] = attrs.field(factory=itertools.count)

    def send_nowait(self, message: m.DeviceCall, /) -> None:
        assert isinstance(message, m.AllocateAsked)
        self.unit.inbox.send_nowait(m.Allocated(message.lease, message.resource, Answer(), uid=0))

    def offer(self, devices: int) -> None:
        listed = DeviceList(Device(f"gpu-{number}") for number in range(devices))
        self.unit.inbox.send_nowait(m.OfferChanged(m.Offer(GPU, listed, ("/r/a.sock", 1), calls=self)))

    def ask(
        self, owner: Owner, devices: int = 1, wait: float | None = None
    ) -> trio.MemoryReceiveChannel[Lease | Failure]:
        send, answer = trio.open_memory_channel[Lease | Failure](1)
        deadline = None if wait is None else trio.current_time() + wait
        asked = m.LeaseAsked(Request((Wanted(GPU, devices),)), owner, 0, next(self.tickets), send, deadline=deadline)
        self.unit.inbox.send_nowait(asked)
        return answer

    async def leases(self) -> tuple[Lease, ...]:
        send, answer = trio.open_memory_channel[m.LeasesSnapshot](1)
        self.unit.inbox.send_nowait(m.LeasesAsked(send))
        return (await answer.receive()).leases


@asynccontextmanager
async def running(devices: int) -> AsyncIterator[Running]:
    processes, jump, bits = MemoryOwnerProcesses(most=2000), [0.0], itertools.count()
    ports = LeasePorts(
        processes,
        MemoryBootClock(),
        lambda _: MemoryCdiStore(),
        lambda: 1e9 + trio.current_time() + sum(jump),
        lambda: next(bits),
    )
    unit = LeaseUnit(
        MemoryLeaseStore(lasting=True),
        lambda: ports,
        LeasesConfig(),
        SILENT,
        operators=frozenset({0}),
        access=NodeAccess(MemoryNodes),
    )
    await unit.open()
    async with trio.open_nursery() as nursery:
        for part in unit.parts.values():
            nursery.start_soon(part)
        made = Running(unit, processes, jump)
        made.offer(devices)
        yield made
        nursery.cancel_scope.cancel()
    unit.close()


async def test_the_wall_clock_decides_nothing(autojump_clock: object) -> None:
    """Fault 90: it jumps by a day, to and fro, while a lease lasts for 100 seconds and somebody waits for 50."""
    async with running(1) as setup:
        lease = await setup.ask(TimeOwner(100.0)).receive()
        assert isinstance(lease, Lease)
        waiter = setup.ask(NoOwner(), wait=50.0)
        for seconds, jump in ((20.0, 86400.0), (29.0, -2 * 86400.0)):
            await trio.sleep(seconds)
            setup.jump.append(jump)
            assert [listed.state for listed in await setup.leases()] == [LeaseState.HELD, LeaseState.QUEUED]
            await wait_all_tasks_blocked()
        await trio.sleep(2.0)
        answer = waiter.receive_nowait()
        assert isinstance(answer, Failure)
        assert answer.problem is m.Problem.TIMEOUT
        await trio.sleep(48.0)
        assert await setup.leases() == (lease,)
        await trio.sleep(2.0)
        assert await setup.leases() == ()
