"""Static devices on a simulated node: they come and go, and are leased as what they are."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.node import SimulatedNode
from plugind.actors.simulation.plugins import FakePlugin
from plugind.protocol.devices.json import LeaseMarks
from plugind.protocol.leases.replies import LeaseFailedError
from plugind.protocol.leases.values import Node
from plugind.protocol.plugins.devices import OTHER_DEVICE
from plugind.protocol.plugins.static_devices import StaticResource
from plugind.protocol.settings.config import Config
from plugind.protocol.status.json import Json

SERIAL = "lab/serial"
RESOURCE = StaticResource(("/dev/ttyUSB*",), nodes=("/dev/common",), env={"PORT": "{path}"})


def simulated(resource: StaticResource = RESOURCE) -> SimulatedNode:
    node = SimulatedNode(Config(devices={SERIAL: resource}))
    node.device_nodes.plug("/dev/common", "c1:3")
    node.device_nodes.plug("/dev/ttyUSB0", "c188:0", place="/devices/usb1")
    return node


async def health(node: SimulatedNode, name: str = SERIAL) -> dict[str, str] | None:
    """Return the health of each device of a resource by its id, a second later; None if there is no resource."""
    await trio.sleep(1)
    found = (await node.supervisor.internals.resources()).find(name)
    return None if found is None else {device.id: device.health for device in found.devices()}


async def marks(node: SimulatedNode) -> dict[str, dict[str, Json]]:
    """Return what the leases add to the devices on the status socket, a second later."""
    await trio.sleep(1)
    found = (await node.supervisor.internals.resources()).find(SERIAL)
    assert found is not None
    return LeaseMarks(await node.supervisor.internals.lease_calls.snapshot()).of(found)


async def test_devices_come_and_go_with_their_nodes(autojump_clock: MockClock) -> None:
    async with simulated() as node:
        assert await health(node) == {"ttyUSB0": "Healthy"}
        node.device_nodes.plug("/dev/ttyUSB1", "c188:1", problem="others may replace it")
        assert await health(node) == {"ttyUSB0": "Healthy", "ttyUSB1": "others may replace it"}
        assert (await node.supervisor.internals.counts()).devices == (1, 1)
        node.device_nodes.unplug("/dev/ttyUSB0")
        assert await health(node) == {"ttyUSB1": "others may replace it"}


async def test_where_no_node_matches_that_is_said(autojump_clock: MockClock) -> None:
    async with simulated() as node:
        node.device_nodes.unplug("/dev/ttyUSB0")
        assert await health(node) == {}
        found = (await node.supervisor.internals.resources()).find(SERIAL)
        assert (found and found.reason) == "no node matches /dev/ttyUSB*"
        with pytest.raises(LeaseFailedError, match=r"lab/serial has no devices \(no node matches /dev/ttyUSB\*\)"):
            async with node.supervisor.allocate({SERIAL: 1}):
                pass
        node.device_nodes.plug("/dev/ttyUSB0", "c188:0")
        await health(node)
        found = (await node.supervisor.internals.resources()).find(SERIAL)
        assert (found and found.reason) is None


async def test_a_lease_gets_the_nodes_and_its_device_is_free_again_afterwards(autojump_clock: MockClock) -> None:
    async with simulated() as node:
        await health(node)
        for _ in range(2):
            async with node.supervisor.allocate({SERIAL: 1}) as lease:
                assert lease.answer is not None
                assert lease.answer.nodes == (Node("/dev/ttyUSB0", "/dev/ttyUSB0"), Node("/dev/common", "/dev/common"))
                assert lease.answer.env == {"PORT": "/dev/ttyUSB0"}
                with pytest.raises(LeaseFailedError, match="Requested: 1, Available: 0"):
                    async with node.supervisor.allocate({SERIAL: 1}):
                        pass


async def test_a_lease_is_refused_where_a_node_is_missing_or_is_another_device_than_was_listed(
    autojump_clock: MockClock,
) -> None:
    async with simulated() as node:
        await health(node)
        node.device_nodes.plug("/dev/ttyUSB0", "c188:0", place="/devices/usb2")
        with pytest.raises(LeaseFailedError, match="ttyUSB0 of lab/serial was unplugged, or is another device by now"):
            async with node.supervisor.allocate({SERIAL: 1}):
                pass
        await health(node)
        node.device_nodes.unplug("/dev/common")
        with pytest.raises(
            LeaseFailedError, match="the node /dev/common, which all devices of lab/serial share, is not given"
        ):
            async with node.supervisor.allocate({SERIAL: 1}):
                pass


async def test_a_leased_device_stays_what_it_was(autojump_clock: MockClock) -> None:
    """A device that is plugged in under its name is another one, also after a restart of the daemon."""

    async def reason() -> str | None:
        await trio.sleep(1)
        return (await node.supervisor.leases())[0].reason

    async with simulated() as node:
        await health(node)
        async with node.supervisor.allocate({SERIAL: 1}, id="bench"):
            assert await reason() is None
            node.device_nodes.plug("/dev/ttyUSB0", "c188:0", place="/devices/usb9")
            assert await reason() == "unhealthy, another device of lab/serial has the id by now: ttyUSB0"
            assert await marks(node) == {"ttyUSB0": {"health": OTHER_DEVICE, "healthy": False}}
            await node.kill()
            await node.start()
            assert await reason() == "unhealthy, another device of lab/serial has the id by now: ttyUSB0"
            node.device_nodes.plug("/dev/ttyUSB0", "c188:0", place="/devices/usb1")
            assert await reason() is None
            assert await marks(node) == {}
            node.device_nodes.unplug("/dev/ttyUSB0")
            await trio.sleep(10)
            assert await reason() == "unhealthy, lab/serial no longer lists ttyUSB0"


async def test_a_leased_device_is_given_to_nobody_under_another_name(autojump_clock: MockClock) -> None:
    """Its id is another one after a replug, and its resource after a reload; a restart forgets neither."""

    async def cannot_have(name: str, device: str) -> None:
        await health(node)
        with pytest.raises(LeaseFailedError, match=f"requested number of devices unavailable for {name}"):
            async with node.supervisor.allocate({name: 1}, ids=[device]):
                pass

    async with simulated() as node:
        await health(node)
        async with node.supervisor.allocate({SERIAL: 1}, id="first"):
            node.device_nodes.unplug("/dev/ttyUSB0")
            node.device_nodes.plug("/dev/ttyUSB3", "c188:0", place="/devices/usb1")
            node.device_nodes.plug("/dev/ttyUSB0", "c188:9", place="/devices/usb9")
            await cannot_have(SERIAL, "ttyUSB3")
            assert (await marks(node))["ttyUSB3"] == {"withheld": "it is leased as lab/serial=ttyUSB0"}
            await node.reconfigure(attrs.evolve(node.config, devices={"lab/new": StaticResource(("/dev/tty*",))}))
            await cannot_have("lab/new", "ttyUSB3")
            await node.kill()
            await node.start()
            await cannot_have("lab/new", "ttyUSB3")
            async with node.supervisor.allocate({"lab/new": 1}) as other:
                assert other.devices == {"lab/new": ("ttyUSB0",)}, "this node is another device"
        await node.supervisor.release("first")  # The block has released it to the daemon that was killed.
        async with node.supervisor.allocate({"lab/new": 1}, ids=["ttyUSB3"]):
            pass


async def test_two_leases_share_a_device_and_a_third_does_not(autojump_clock: MockClock) -> None:
    async with simulated(attrs.evolve(RESOURCE, shared=2)) as node:
        await health(node)
        async with node.supervisor.allocate({SERIAL: 1}) as one, node.supervisor.allocate({SERIAL: 1}) as two:
            assert (one.devices, two.devices) == ({SERIAL: ("ttyUSB0::0",)}, {SERIAL: ("ttyUSB0::1",)})
        async with node.supervisor.allocate({SERIAL: 2}):
            pass


async def test_a_reload_adds_changes_and_removes_resources(autojump_clock: MockClock) -> None:
    async with SimulatedNode(Config()) as node:
        node.device_nodes.plug("/dev/ttyUSB0", "c188:0")
        assert await health(node) is None
        for paths, expected in (("/dev/tty*", {"ttyUSB0": "Healthy"}), ("/dev/x*", {})):
            config = attrs.evolve(node.config, devices={SERIAL: StaticResource((paths,))})
            await node.reconfigure(config)
            assert await health(node) == expected
        await node.reconfigure(attrs.evolve(node.config, devices={}))
        await trio.sleep(400)
        assert await health(node) is None


async def test_a_device_plugin_cannot_have_a_resource_that_the_configuration_names(autojump_clock: MockClock) -> None:
    async with simulated() as node:
        node.plug("a.sock", FakePlugin("DevicePlugin", SERIAL, versions=("v1beta1",)))
        await node.settled()
        assert "the configuration names the devices of lab/serial" in str(node.status("a.sock"))
        assert await health(node) == {"ttyUSB0": "Healthy"}


async def test_a_crash_of_the_devices_actor_loses_no_static_device(autojump_clock: MockClock) -> None:
    async with simulated() as node:
        await health(node)
        node.crash("devices")
        assert await health(node) == {"ttyUSB0": "Healthy"}
