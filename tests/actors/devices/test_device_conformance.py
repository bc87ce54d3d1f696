"""The reference's tests of a device plugin's endpoint, one by one: what the kubelet asks, and what it makes of answers.

Where plugind decides otherwise the test says so, with the issue that asks for it. Consumers F.2 is the list.
"""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.devices.handler import DevicePluginHandler
from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.protocol.devices.messages import InstanceMessage, ListReceived
from plugind.protocol.devices.resources import GRACE, Resources
from plugind.protocol.plugins.devices import Device, DeviceList, ResourceStatus
from plugind.testing import FakePlugin, PluggedIn, SimulatedNode

RESOURCE = "vendor.com/device"
TWO = (Device("dev-1"), Device("dev-2"))


@attrs.define
class Manager:
    """A simulated node, and what its device plugins come to: the kubelet's device manager, as its tests see it."""

    resources: Resources = attrs.Factory(Resources)
    lists: list[DeviceList] = attrs.Factory(list)
    node: SimulatedNode = attrs.field(init=False)

    @node.default
    def _make_node(self) -> SimulatedNode:
        return SimulatedNode(handlers={"DevicePlugin": DevicePluginHandler(self)})

    def send_nowait(self, message: InstanceMessage, /) -> None:
        if isinstance(message, ListReceived):
            self.lists.append(message.devices)
        self.resources.handle(message, trio.current_time())

    def plug(self, socket: str, devices: FakeDevices) -> PluggedIn:
        return self.node.plug(socket, FakePlugin("DevicePlugin", RESOURCE, ("v1beta1",), serves=[devices]))

    def status(self) -> ResourceStatus | None:
        self.resources.pass_time(trio.current_time())
        return self.resources.status(RESOURCE)

    def figures(self) -> tuple[int, int] | None:
        """Return capacity and allocatable devices; None if the resource is not known."""
        status = self.status()
        return None if status is None else (status.capacity, status.allocatable)

    def healths(self) -> dict[str, str]:
        status = self.status()
        return {} if status is None else {device.id: device.health for device in status.devices()}


async def test_two_lists_are_exactly_two_lists_with_exactly_their_devices(autojump_clock: MockClock) -> None:
    """TestNewEndpoint, TestRun: the second has one device unhealthy, one removed, and one that is new."""
    manager = Manager()
    async with manager.node as node:
        devices = FakeDevices(TWO)
        manager.plug("a.sock", devices)
        await node.settled()
        await trio.sleep(5)
        second = (Device("dev-1", "Unhealthy"), Device("dev-3"))
        devices.show(*second)
        await trio.sleep(5)
    assert manager.lists == [DeviceList(TWO), DeviceList(second)]


@pytest.mark.parametrize("pre_start", [False, True])
@pytest.mark.parametrize("preferred", [False, True])
async def test_a_plugin_that_registers_again_replaces_the_devices(
    pre_start: bool, preferred: bool, autojump_clock: MockClock
) -> None:
    """TestDevicePluginReRegistration, …ProbeMode: two devices; another socket, still two; a third one with one device,
    and the old ones are gone; for each combination of options."""
    manager = Manager()
    async with manager.node as node:
        for socket, listed in (("a.sock", TWO), ("b.sock", TWO), ("c.sock", (Device("dev-3"),))):
            devices = FakeDevices(listed)
            devices.options = attrs.evolve(
                devices.options, pre_start_required=pre_start, get_preferred_allocation_available=preferred
            )
            manager.plug(socket, devices)
            await node.settled()
            assert manager.healths() == {device.id: "Healthy" for device in listed}
            status = manager.status()
            assert status is not None
            assert {instance.options for instance in status.instances} == {devices.options}


async def test_capacity_and_allocatable_follow_the_lists_and_the_end(autojump_clock: MockClock) -> None:
    """TestUpdateCapacityAllocatable: 2 healthy and 1 not is 3/2; then 2/2, 3/1, 2/0; after a stop all are unhealthy
    (TestEndpointSyncOnDisconnect, k8s 133702), and after the grace the resource is gone."""
    manager = Manager()
    async with manager.node as node:
        devices = FakeDevices((*TWO, Device("dev-3", "Unhealthy")))
        plugin = manager.plug("a.sock", devices)
        await node.settled()
        assert manager.figures() == (3, 2)
        for listed, figures in (
            (TWO, (2, 2)),
            ((Device("dev-1"), Device("dev-2", "Unhealthy"), Device("dev-3", "Unhealthy")), (3, 1)),
            ((Device("dev-1", "Unhealthy"), Device("dev-2", "no")), (2, 0)),
            (TWO, (2, 2)),
        ):
            devices.show(*listed)
            await trio.sleep(1)
            assert manager.figures() == figures
        plugin.stop()
        await node.settled()
        assert manager.figures() == (2, 0)
        await trio.sleep(GRACE - 10)
        assert manager.figures() == (2, 0)
        await trio.sleep(20)
        assert manager.figures() is None


# --- hostile endpoints ------------------------------------------------------------------------------------------------


async def test_an_endpoint_that_another_user_takes_is_not_used(autojump_clock: MockClock) -> None:
    """Fault 40: its list would be that user's. The devices are unhealthy from the moment of the change."""
    manager = Manager()
    async with manager.node as node:
        devices = FakeDevices(TWO)
        plugin = manager.plug("a.sock", devices)
        await node.settled()
        await trio.sleep(5)
        plugin.become(4000)
        devices.show(*TWO, Device("theirs"))
        await trio.sleep(60)
        assert len(devices.streamed) == 1
        assert manager.figures() in ((2, 0), None)
        assert "theirs" not in manager.healths()
