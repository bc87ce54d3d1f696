"""Devices in a whole simulated node: real followers, the devices actor, and what programs read."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.protocol.plugins.devices import Device, DevicesSnapshot, ResourceState
from plugind.protocol.settings.config import Config, Root
from plugind.supervisor import NodeEndedError, Supervisor
from plugind.testing import FakePlugin, PluggedIn, SimulatedNode

GPU = "vendor.com/gpu"
FOUR = tuple(Device(f"gpu-{number}") for number in range(4))


def plug(node: SimulatedNode, socket: str, devices: FakeDevices) -> PluggedIn:
    return node.plug(socket, FakePlugin("DevicePlugin", GPU, ("v1beta1",), serves=[devices]))


async def capacities(node: SimulatedNode, seen: list[tuple[float, int, int]]) -> None:
    """Record capacity and allocatable of the resource, whenever one of them changes."""
    async with node.supervisor.internals.resource_changes() as changes:
        async for change in changes:
            if not isinstance(change, DevicesSnapshot):
                resource = change.resource
                now = (resource.capacity, resource.allocatable)
                if not seen or seen[-1][1:] != now:
                    seen.append((round(change.time, 6), *now))


@pytest.mark.parametrize("actor", ["devices", "status"])
async def test_crashes_change_nothing_that_is_shown_of_devices(node: SimulatedNode, actor: str) -> None:
    """Fault 85: of the devices actor, and of the status actor."""
    devices = FakeDevices(FOUR)
    plug(node, "a.sock", devices)
    await node.settled()
    await trio.sleep(10.0)
    devices.show(*FOUR[:3], Device("gpu-3", "Sick"))
    await trio.sleep(10.0)
    before = await node.supervisor.devices()
    assert node.crash(actor)  # type: ignore[arg-type]
    await trio.sleep(10.0)
    assert await node.supervisor.devices() == before
    devices.show(*FOUR)
    await trio.sleep(1.0)
    (resource,) = await node.supervisor.devices()
    assert (resource.capacity, resource.allocatable) == (4, 4)


async def test_a_crash_of_the_reconciler_keeps_the_capacity(node: SimulatedNode) -> None:
    """Fault 85: all plugins are deregistered and registered anew; the devices are unhealthy meanwhile, and not gone."""
    plug(node, "a.sock", FakeDevices(FOUR))
    await node.settled()
    seen: list[tuple[float, int, int]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(capacities, node, seen)
        await trio.sleep(1.0)
        node.crash("reconciler")
        await trio.sleep(30.0)
        nursery.cancel_scope.cancel()
    assert {capacity for _, capacity, _ in seen} == {4}
    assert seen[-1][1:] == (4, 4)


async def test_known_resources_are_awaited_by_the_next_daemon(node: SimulatedNode) -> None:
    """TestCheckpoint: with what the store of the node has kept."""
    plugged = plug(node, "a.sock", FakeDevices(FOUR))
    await node.settled()
    await trio.sleep(1.0)
    await node.kill()
    plugged.stop()
    await node.start()
    (resource,) = await node.supervisor.devices()
    assert (resource.name, resource.state, resource.capacity) == (GPU, ResourceState.AWAITED, 0)
    plug(node, "a.sock", FakeDevices(FOUR[:2]))
    await node.settled()
    await trio.sleep(1.0)
    (resource,) = await node.supervisor.devices()
    assert (resource.state, resource.allocatable) == (ResourceState.LISTED, 2)


async def test_a_node_that_has_ended_has_no_devices_to_show(autojump_clock: MockClock) -> None:
    """The stream ends with the node, and a question to a node that has ended is an error."""
    async with SimulatedNode() as node:
        supervisor = node.supervisor
        async with supervisor.watch_devices() as changes:
            await node.stop()
            assert [change async for change in changes] == []
        with pytest.raises(NodeEndedError, match="the node ended, and has no devices to show"):
            await supervisor.devices()
        with pytest.raises(NodeEndedError):
            async with supervisor.watch_devices():
                pass


async def test_only_a_node_whose_state_has_a_place_makes_a_file(tmp_path: Path) -> None:
    """Also one without device plugins that call: others are in a root, and are leased as well."""
    (tmp_path / "root").mkdir()
    config = Config(roots=(Root(tmp_path / "root"),))
    for state, made in ((None, ["root"]), (str(tmp_path / "state"), ["root", "state"])):
        async with Supervisor(attrs.evolve(config, state=state)) as node:
            assert (await node.internals.resources()).problem is None
        assert sorted(os.listdir(tmp_path)) == made
