"""Access by leases on a simulated node: whoever holds a lease of a device may open its node, and nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.node import DAEMON_UID, SimulatedNode
from plugind.protocol.errors import AllocationError
from plugind.protocol.plugins.static_devices import StaticResource
from plugind.protocol.settings.config import Config

SERIAL = "lab/serial"
TTY = "/dev/ttyUSB0"
RESOURCE = StaticResource(("/dev/ttyUSB*",), nodes=("/dev/common",), access="acl")
HOLDER = {DAEMON_UID: "rw"}


@asynccontextmanager
async def simulated(resource: StaticResource = RESOURCE) -> AsyncIterator[SimulatedNode]:
    node = SimulatedNode(Config(devices={SERIAL: resource}))
    node.device_nodes.plug("/dev/common", "c1:3")
    node.device_nodes.plug(TTY, "c188:0", place="/devices/usb1")
    async with node:
        await trio.sleep(1)
        yield node


def users(node: SimulatedNode, *paths: str) -> list[dict[int, str]]:
    return [node.device_nodes.users(path) for path in paths]


async def health(node: SimulatedNode) -> dict[str, str]:
    await trio.sleep(1)
    found = (await node.supervisor.devices()).find(SERIAL)
    assert found is not None
    return {device.id: device.health for device in found.devices()}


async def test_the_user_of_a_lease_may_open_its_nodes_until_the_lease_ends(autojump_clock: MockClock) -> None:
    async with simulated() as node:
        assert users(node, TTY, "/dev/common") == [{}, {}]
        async with node.supervisor.allocate({SERIAL: 1}):
            assert users(node, TTY, "/dev/common") == [HOLDER, HOLDER]
        assert users(node, TTY, "/dev/common") == [{}, {}]


async def test_an_entry_permits_what_the_resource_does(autojump_clock: MockClock) -> None:
    async with simulated(attrs.evolve(RESOURCE, permissions="r")) as node, node.supervisor.allocate({SERIAL: 1}):
        assert users(node, TTY) == [{DAEMON_UID: "r"}]


async def test_of_two_leases_of_one_user_on_a_shared_device_the_last_takes_the_entry_away(
    autojump_clock: MockClock,
) -> None:
    async with simulated(attrs.evolve(RESOURCE, shared=2)) as node:
        async with node.supervisor.allocate({SERIAL: 1}):
            async with node.supervisor.allocate({SERIAL: 1}):
                assert users(node, TTY) == [HOLDER]
            assert users(node, TTY, "/dev/common") == [HOLDER, HOLDER]
        assert users(node, TTY, "/dev/common") == [{}, {}]


async def test_a_restart_keeps_the_entries_of_leases_and_removes_all_others(autojump_clock: MockClock) -> None:
    """One of a lease that ended meanwhile, and one of a daemon that was killed before it had written the lease."""
    async with simulated() as node:
        node.device_nodes.plug("/dev/ttyUSB1", "c188:1", place="/devices/usb2")
        await trio.sleep(1)
        async with node.supervisor.allocate({SERIAL: 1}, id="bench"):
            assert users(node, TTY, "/dev/ttyUSB1") == [HOLDER, {}]
            await node.kill()
            (left_over,) = node.device_nodes.find(StaticResource(("/dev/ttyUSB1",)))
            node.device_nodes.admit(left_over, {1000: 6}, only=False)
            assert users(node, "/dev/ttyUSB1") == [{1000: "rw"}]
            await node.start()
            await trio.sleep(1)
            assert users(node, TTY, "/dev/ttyUSB1") == [HOLDER, {}]
        await node.supervisor.release("bench")
        assert users(node, TTY, "/dev/common") == [{}, {}]


async def test_a_node_that_was_replaced_has_the_entry_again_if_it_is_the_same_device(autojump_clock: MockClock) -> None:
    async with simulated() as node, node.supervisor.allocate({SERIAL: 1}):
        for place, expected in (("/devices/usb9", {}), ("/devices/usb1", HOLDER)):
            node.device_nodes.unplug(TTY)
            await trio.sleep(1)
            node.device_nodes.plug(TTY, "c188:0", place=place)
            await trio.sleep(1)
            assert users(node, TTY) == [expected]


async def test_what_udev_does_to_a_leased_node_is_mended(autojump_clock: MockClock) -> None:
    async with simulated() as node, node.supervisor.allocate({SERIAL: 1}):
        node.device_nodes.chmod(TTY, 0o600)
        assert users(node, TTY) == [{}], "the mask lets nothing through"
        await trio.sleep(1)
        assert users(node, TTY) == [HOLDER]


async def test_a_node_that_others_may_open_is_unhealthy_and_is_not_touched(autojump_clock: MockClock) -> None:
    async with simulated() as node:
        async with node.supervisor.allocate({SERIAL: 1}):
            node.device_nodes.chmod(TTY, 0o666)
            why = (await health(node))["ttyUSB0"]
            assert why.startswith('everybody may open it: set OWNER="root", GROUP="root", MODE="0660"')
        assert users(node, TTY) == [HOLDER]
        node.device_nodes.chmod(TTY, 0o660)
        assert await health(node) == {"ttyUSB0": "Healthy"}
        assert users(node, TTY) == [{}]
        node.device_nodes.chmod("/dev/common", 0o666)
        with pytest.raises(AllocationError, match="no lease of lab/serial gives access to /dev/common: everybody may"):
            async with node.supervisor.allocate({SERIAL: 1}):
                pass
        assert users(node, TTY) == [{}], "what was given before the refusal is taken back"


async def test_entries_go_with_their_lease_also_where_the_configuration_says_nothing_any_more(
    autojump_clock: MockClock,
) -> None:
    async with simulated() as node:
        async with node.supervisor.allocate({SERIAL: 1}):
            await node.reconfigure(attrs.evolve(node.config, devices={}))
            await trio.sleep(1)
            assert users(node, TTY) == [HOLDER]
        assert users(node, TTY) == [{}]


async def test_a_crash_of_the_lease_actor_changes_no_access(autojump_clock: MockClock) -> None:
    async with simulated() as node:
        async with node.supervisor.allocate({SERIAL: 1}):
            node.crash("leases")
            await trio.sleep(1)
            assert users(node, TTY) == [HOLDER]
        await trio.sleep(1)
        assert users(node, TTY) == [{}]
