"""Pools, limits and operators of leases that change while a node runs: leases keep what they have."""

from __future__ import annotations

import os
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.protocol.errors import ConfigError
from plugind.protocol.leases.config import LeaseLimits, LeasesConfig
from plugind.protocol.leases.mapped import ResourceConfig
from plugind.protocol.leases.messages import Problem
from plugind.protocol.leases.replies import LeaseFailedError, LimitMet
from plugind.protocol.leases.values import Pool, UserLimits
from plugind.protocol.plugins.devices import Device, DeviceOptions
from plugind.protocol.settings.config import Config
from plugind.testing import DEFAULT_CONFIG, AllocationCall, FakePlugin, SimulatedNode

GPU = "vendor.com/gpu"


def leasing(*pools: Pool, limits: LeaseLimits | None = None) -> Config:
    return attrs.evolve(DEFAULT_CONFIG, leases=LeasesConfig(pools=pools, limits=limits or LeaseLimits()))


def lab(*ids: str, users: frozenset[int] = frozenset()) -> Pool:
    return Pool("lab", GPU, frozenset(ids), users)


def plug(node: SimulatedNode, devices: FakeDevices | None = None) -> None:
    serves = devices or FakeDevices([Device(f"gpu-{number}") for number in range(3)])
    node.plug("a.sock", FakePlugin("DevicePlugin", GPU, ("v1beta1",), serves=[serves]))


class Waiting:
    """A caller that waits for devices of the pool."""

    def __init__(self, node: SimulatedNode, wait: float = 60.0, pool: str | None = "lab") -> None:
        self.node = node
        self.wait = wait
        self.pool = pool
        #: When it got its devices and which, or when and why it did not.
        self.said: list[tuple[float, object]] = []

    async def run(self) -> None:
        try:
            async with self.node.supervisor.allocate({GPU: 1}, pool=self.pool, wait=self.wait) as lease:
                self.said.append((trio.current_time(), lease.devices[GPU]))
        except LeaseFailedError as error:
            self.said.append((trio.current_time(), (error.problem, str(error))))


async def test_a_caller_in_line_gets_a_device_that_is_put_into_its_pool(autojump_clock: MockClock) -> None:
    async with SimulatedNode(leasing(lab("gpu-0"))) as node, trio.open_nursery() as nursery:
        plug(node)
        await node.settled()
        async with node.supervisor.allocate({GPU: 1}, pool="lab") as held:
            caller = Waiting(node)
            nursery.start_soon(caller.run)
            await trio.sleep_until(10.0)
            await node.reconfigure(leasing(lab("gpu-0", "gpu-2")))
            await trio.sleep_until(20.0)
            assert caller.said == [(10.0, ("gpu-2",))]
            assert held.devices == {GPU: ("gpu-0",)}
            # What is in no pool is for those that name none.
            async with node.supervisor.allocate({GPU: 1}) as other:
                assert other.devices == {GPU: ("gpu-1",)}


async def test_a_caller_in_line_is_told_when_its_pool_is_gone_and_a_lease_stays(autojump_clock: MockClock) -> None:
    async with SimulatedNode(leasing(lab("gpu-0"))) as node, trio.open_nursery() as nursery:
        plug(node)
        await node.settled()
        async with node.supervisor.allocate({GPU: 1}, pool="lab") as held:
            caller = Waiting(node)
            nursery.start_soon(caller.run)
            await trio.sleep_until(10.0)
            await node.reconfigure(leasing())
            await trio.sleep_until(20.0)
            assert caller.said == [(10.0, (Problem.USAGE, f"there is no pool lab of {GPU}"))]
            assert [lease.id for lease in await node.supervisor.leases()] == [held.id]
            async with node.supervisor.allocate({GPU: 2}) as others:
                assert others.devices == {GPU: ("gpu-1", "gpu-2")}
        # The device that was in the pool is for all once its lease has ended.
        async with node.supervisor.allocate({GPU: 3}) as every:
            assert every.devices == {GPU: ("gpu-0", "gpu-1", "gpu-2")}


async def test_a_caller_whose_pool_is_closed_to_it_while_its_plugin_chooses_has_its_device(
    autojump_clock: MockClock,
) -> None:
    """Its turn had come. The next one is refused."""
    devices = FakeDevices([Device("gpu-0"), Device("gpu-1")], DeviceOptions(get_preferred_allocation_available=True))
    devices.delays[AllocationCall.PREFERRED] = 5.0
    async with SimulatedNode(leasing(lab("gpu-0", "gpu-1"))) as node, trio.open_nursery() as nursery:
        plug(node, devices)
        await node.settled()
        caller, began = Waiting(node), trio.current_time()
        nursery.start_soon(caller.run)
        await trio.sleep(1.0)
        await node.reconfigure(leasing(lab("gpu-0", "gpu-1", users=frozenset((7,)))))
        await trio.sleep(20.0)
        assert [devices for _, devices in caller.said] == [("gpu-0",)]
        assert caller.said[0][0] > began
        with pytest.raises(LeaseFailedError, match="user 500 may not take devices from the pool lab"):
            async with node.supervisor.allocate({GPU: 1}, pool="lab"):
                pass


async def test_a_reload_changes_the_variables_that_are_made_of_those_of_a_plugin(autojump_clock: MockClock) -> None:
    async with SimulatedNode() as node:
        plug(node)
        await node.settled()
        async with node.supervisor.allocate({GPU: 1}) as before:
            given = before.answer
            assert given is not None
            (name,) = given.env
            mapping = ResourceConfig({"MADE": f"of {{{name}}}"})
            await node.reconfigure(attrs.evolve(DEFAULT_CONFIG, resources={GPU: mapping}))
            async with node.supervisor.allocate({GPU: 1}) as after:
                assert after.answer is not None
                assert after.answer.env == {name: "gpu-1", "MADE": "of gpu-1"}


async def test_a_lower_limit_ends_no_lease_and_refuses_the_next(autojump_clock: MockClock) -> None:
    async with SimulatedNode() as node:
        plug(node)
        await node.settled()
        async with node.supervisor.allocate({GPU: 1}), node.supervisor.allocate({GPU: 1}):
            await node.reconfigure(leasing(limits=LeaseLimits(leases=1)))
            with pytest.raises(LeaseFailedError, match="user 500 has 1 leases, and may not have more") as caught:
                async with node.supervisor.allocate({GPU: 1}):
                    pass
            assert caught.value.problem is Problem.LIMIT
            assert len(await node.supervisor.leases()) == 2
            await node.reconfigure(leasing(limits=LeaseLimits(leases=3)))
            async with node.supervisor.allocate({GPU: 1}) as third:
                assert third.devices == {GPU: ("gpu-2",)}


def limiting(**limits: Any) -> Config:
    return attrs.evolve(DEFAULT_CONFIG, resources={GPU: ResourceConfig(limits=UserLimits(**limits, source="f:3"))})


async def test_a_limit_of_users_follows_reloads_and_takes_nothing_back(autojump_clock: MockClock) -> None:
    """The timeline of one user, whose longest time runs out after a crash, and is stopped when the operator says so."""
    async with SimulatedNode(limiting(devices_per_user=2)) as node, trio.open_nursery() as nursery:
        plug(node)
        await node.settled()
        async with node.supervisor.allocate({GPU: 2}, id="two") as two:
            waiting = Waiting(node, 1000.0, pool=None)
            nursery.start_soon(waiting.run)
            await trio.sleep_until(10.0)
            (shown,) = (lease for lease in await node.supervisor.leases() if lease.id != "two")
            assert shown.reason == (
                f"it waits for a lease of its user to end: user 500 has 2 of {GPU} and may have 2 at once"
                f' (limit resources."{GPU}".devices_per_user, f:3)'
            )
            with pytest.raises(LeaseFailedError, match="waits for 1 before, and may have 2 at once") as caught:
                async with node.supervisor.allocate({GPU: 1}):
                    pass
            assert caught.value.problem is Problem.LIMIT
            assert caught.value.limit == LimitMet("devices_per_user", 2, GPU, None, "f:3")
            assert caught.value.holders == (two,)
            await trio.sleep_until(20.0)
            await node.reconfigure(limiting(devices_per_user=1))
            await trio.sleep_until(30.0)
            assert waiting.said == []
            assert two in await node.supervisor.leases()
        await trio.sleep_until(40.0)
        assert waiting.said == [(30.0, ("gpu-0",))]
        await node.reconfigure(limiting(longest_lease=100.0, longest_wait=60.0))
        with pytest.raises(LeaseFailedError, match="a wait of 61s for"):
            async with node.supervisor.allocate({GPU: 1}, wait=61.0):
                pass
        async with node.supervisor.allocate({GPU: 1}, id="long"):
            node.crash("leases")
            await trio.sleep_until(139.0)
            assert not [lease for lease in await node.supervisor.leases() if lease.overdue]
            await trio.sleep_until(141.0)
            (overdue,) = await node.supervisor.leases()
            assert (overdue.id, overdue.overdue) == ("long", True)
            assert node.owners.stopped == []
            await node.reconfigure(limiting(stop_at_longest=True))
            await trio.sleep_until(142.0)
            assert [process.pid for process, _ in node.owners.stopped] == [os.getpid()]


async def test_a_lease_actor_that_crashes_before_the_change_and_after_it_begins_with_it(
    autojump_clock: MockClock,
) -> None:
    async with SimulatedNode() as node:
        plug(node)
        await node.settled()
        async with node.supervisor.allocate({GPU: 1}) as held:
            node.crash("leases")
            await node.reconfigure(leasing(lab("gpu-1")))
            for _ in range(2):
                await trio.sleep(10.0)
                async with node.supervisor.allocate({GPU: 1}, pool="lab") as other:
                    assert (held.devices, other.devices) == ({GPU: ("gpu-0",)}, {GPU: ("gpu-1",)})
                node.crash("leases")


async def test_a_device_in_two_pools_refuses_the_whole_change(autojump_clock: MockClock) -> None:
    async with SimulatedNode() as node:
        both = leasing(lab("gpu-0"), Pool("other", GPU, frozenset(("gpu-0",))))
        with pytest.raises(ConfigError, match="the pools lab and other have devices of"):
            await node.reconfigure(attrs.evolve(both, expected=("red",)))
        assert node.supervisor.config == DEFAULT_CONFIG
