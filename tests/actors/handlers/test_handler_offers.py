"""Devices that a handler offers for its plugins: they are shown and leased like those of device plugins."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from plugind import Config, Device, Handler, Link, Plugin, StaticResource
from plugind.protocol.leases.replies import LeaseFailedError
from plugind.testing import FakeHandler, FakePlugin, SimulatedNode

SENSOR = "lab.example.com/sensor"
TWO = (Device("s-0"), Device("s-1"))


class Sensors(FakeHandler):
    """Offers two devices for each plugin; ``links`` has the link of each."""

    def __init__(self) -> None:
        super().__init__(follows=True)

    async def register(self, plugin: Plugin, link: Link) -> None:  # type: ignore[override]  # this one takes the link
        await super().register(plugin)
        link.offer(TWO)


def node_with(handler: Handler) -> SimulatedNode:
    return SimulatedNode(handlers={"SensorPlugin": handler})


async def shown(node: SimulatedNode) -> list[tuple[str, str]]:
    return [(one.id, one.health) for resource in await node.supervisor.devices(SENSOR) for one in resource.devices()]


async def test_devices_of_a_handler_are_leased_as_long_as_its_plugin_is_registered(autojump_clock: MockClock) -> None:
    handler = Sensors()
    async with node_with(handler) as node:
        plugin = node.plug("a.sock", FakePlugin("SensorPlugin", SENSOR))
        await node.settled()
        await trio.sleep(1.0)
        assert await shown(node) == [("s-0", "Healthy"), ("s-1", "Healthy")]
        async with node.supervisor.allocate({SENSOR: 1}) as lease:
            assert lease.devices == {SENSOR: ("s-0",)}
            with pytest.raises(LeaseFailedError, match="Requested: 2, Available: 1"):
                async with node.supervisor.allocate({SENSOR: 2}):
                    pass
        # What it says next counts, also while its follow runs, and what is unhealthy is not given.
        handler.links["/plugins/a.sock"].offer([Device("s-0", "Broken"), Device("s-1")])
        await trio.sleep(1.0)
        assert await shown(node) == [("s-0", "Broken"), ("s-1", "Healthy")]
        async with node.supervisor.allocate({SENSOR: 1}) as lease:
            assert lease.devices == {SENSOR: ("s-1",)}
        # A crash of the devices actor loses none of them, and a restart of the plugin brings them back.
        node.crash("devices")
        await trio.sleep(1.0)
        assert len(await shown(node)) == 2
        plugin.restart()
        await node.settled()
        await trio.sleep(1.0)
        assert await shown(node) == [("s-0", "Healthy"), ("s-1", "Healthy")]
        plugin.stop()
        await trio.sleep(1.0)
        with pytest.raises(LeaseFailedError, match=r"\(its plugin was deregistered\)"):
            async with node.supervisor.allocate({SENSOR: 1}):
                pass
        assert not any(resource.allocatable for resource in await node.supervisor.devices())


async def test_devices_of_the_configuration_are_not_mixed_with_those_of_a_handler(autojump_clock: MockClock) -> None:
    config = Config(devices={SENSOR: StaticResource(("/dev/sensor*",))})
    async with SimulatedNode(config, handlers={"SensorPlugin": Sensors()}) as node:
        node.device_nodes.plug("/dev/sensor0", "c188:0")
        node.plug("a.sock", FakePlugin("SensorPlugin", SENSOR))
        await trio.sleep(1.0)
        status = node.status("a.sock")
        assert status is not None
        assert f"the plugin {SENSOR} can offer no devices: the configuration has devices of that" in (
            status.cause or ""
        )
        assert await shown(node) == [("sensor0", "Healthy")]


async def test_a_plugin_whose_name_is_no_resource_offers_nothing(autojump_clock: MockClock) -> None:
    async with node_with(Sensors()) as node:
        node.plug("a.sock", FakePlugin("SensorPlugin", "sensors"))
        await trio.sleep(1.0)
        status = node.status("a.sock")
        assert status is not None
        assert "can offer no devices: it is not of the form vendor.domain/name" in (status.cause or "")
