"""Drains in a whole simulated node: over kills, crashes and lost leases, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest
import trio

from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.protocol.leases.drains import Drain, DrainTarget
from plugind.protocol.leases.messages import DrainAsked, Failure, LeasesMessage, Problem, RecoverAsked, UndrainAsked
from plugind.protocol.leases.replies import LeaseFailedError
from plugind.protocol.messages.addresses import Address
from plugind.testing import SimulatedNode
from plugind.tests.actors.leases.test_embedded_leases import GPU, TWO, plug
from plugind.tests.fuzz.lease_stores import SimulatedLeaseStore

G0 = DrainTarget(GPU, "gpu-0")
T = TypeVar("T")


async def ask(node: SimulatedNode, make: Callable[[Address[T]], LeasesMessage]) -> T:
    """Send the lease actor a message that is made with the address of the answer, and return the answer."""
    reply, answer = trio.open_memory_channel[T](1)
    node.supervisor.internals.leases.inbox.send_nowait(make(reply))
    return await answer.receive()


async def drain(node: SimulatedNode, target: DrainTarget, until: float | None = None) -> Drain | Failure:
    return await ask(node, lambda reply: DrainAsked(Drain(target, 0, 0.0, "broken", until), reply))


async def drains(node: SimulatedNode) -> list[DrainTarget]:
    return [*(await node.supervisor.internals.lease_calls.snapshot()).drains]


async def given(node: SimulatedNode) -> tuple[str, ...]:
    async with node.supervisor.allocate({GPU: 1}) as lease:
        return lease.devices[GPU]


async def test_a_drain_outlives_kills_and_crashes_and_lost_leases_until_its_time_is_over(
    autojump_clock: object,
) -> None:
    node = SimulatedNode()
    store = node.lease_store = SimulatedLeaseStore()
    plug(node, FakeDevices(TWO))
    async with node:
        await node.settled()
        end = trio.current_time() + 1000
        assert isinstance(await drain(node, G0, end), Drain)
        assert await given(node) == ("gpu-1",)
        await node.kill()
        await node.start()
        await node.settled()
        assert await given(node) == ("gpu-1",)
        assert node.crash("leases")
        assert await given(node) == ("gpu-1",)
        await node.kill()
        store.damage(unnoticed=True)
        await node.start()
        await node.settled()
        assert await drains(node) == [G0]
        assert await ask(node, partial(RecoverAsked, 0)) is None
        with pytest.raises(LeaseFailedError, match=r"Available: 1; drained: vendor.com/gpu:gpu-0 until .*: broken"):
            async with node.supervisor.allocate({GPU: 2}):
                pass
        async with node.supervisor.allocate({GPU: 2}, wait=1e6):
            assert end <= trio.current_time() < end + 1
        await node.settled()
        assert store.drains == {}


async def test_holders_keep_theirs_and_an_undrain_gives_it_to_whoever_waits(node: SimulatedNode) -> None:
    plug(node, FakeDevices(TWO))
    await node.settled()
    granted = list[str]()

    async def wait() -> None:
        async with node.supervisor.allocate({GPU: 2}, wait=1e6) as lease:
            granted.extend(lease.devices[GPU])

    async with trio.open_nursery() as nursery:
        async with node.supervisor.allocate({GPU: 1}) as held:
            assert held.devices == {GPU: ("gpu-0",)}
            await drain(node, DrainTarget(GPU))
            assert await node.supervisor.leases() == (held,)
            nursery.start_soon(wait)
        await trio.sleep(100)
        assert granted == []
        await ask(node, partial(UndrainAsked, DrainTarget(GPU), 0))
    assert granted == ["gpu-0", "gpu-1"]


async def test_a_drain_that_the_disk_refuses_is_none(autojump_clock: object) -> None:
    node = SimulatedNode()
    store = node.lease_store = SimulatedLeaseStore()
    plug(node, FakeDevices(TWO))
    async with node:
        await node.settled()
        store.disk.full = True
        failure = await drain(node, G0)
        assert isinstance(failure, Failure)
        assert failure.problem is Problem.STORAGE
        store.disk.mend()
        await trio.sleep(60)
        assert (store.drains, await drains(node)) == ({}, [])
        assert await given(node) == ("gpu-0",)


async def test_who_drains_amid_a_crash_is_told_to_ask_again(node: SimulatedNode) -> None:
    reply, answer = trio.open_memory_channel[Drain | Failure](1)
    node.supervisor.internals.leases.inbox.send_nowait(DrainAsked(Drain(G0, 0, 0.0), reply))
    node.crash("leases")
    failure = await answer.receive()
    assert isinstance(failure, Failure)
    assert failure.problem is Problem.UNAVAILABLE
    await trio.sleep(60)
    assert isinstance(await drain(node, G0), Drain)
