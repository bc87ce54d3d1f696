"""Fault 79: a plugin whose endpoint belongs to another one has no connection there, neither an old nor a new one.

Ann's plugin names an endpoint first, and a plugin of root names it, too: then Ann's stays registered and stands by.
"""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.dra_drivers import USUAL_SERVICES, FakeDRADriver
from plugind.actors.simulation.node import DEFAULT_CONFIG
from plugind.protocol.errors import NoConnectionError
from plugind.protocol.handlers.dra_claims import DRAClaim
from plugind.protocol.handlers.dra_health import DeviceReport, DRADeviceHealth
from plugind.protocol.plugins.health import Health
from plugind.protocol.trust.users import Trust
from plugind.testing import FakeHandler, FakePlugin, SimulatedNode
from plugind.tests.actors.registration.timelines import shown

ANN = 1001
ENDPOINT = "/plugins/.gpu.sock"
REASON = (
    f"the endpoint '{ENDPOINT}' belongs to Colour 'gpu' of user 0, by the socket /plugins/root.sock: give this"
    " plugin an endpoint of its own"
)
NAME = "gpu.example.com"
HEALTH = "v1.DRAResourceHealth"


def node_with(handler: FakeHandler) -> SimulatedNode:
    return SimulatedNode(attrs.evolve(DEFAULT_CONFIG, trust=Trust((ANN,))), handlers={"Colour": handler})


def colour(name: str) -> FakePlugin:
    return FakePlugin("Colour", name, endpoint=ENDPOINT)


async def test_a_link_of_a_displaced_plugin_has_no_channel_and_makes_none(autojump_clock: MockClock) -> None:
    handler = FakeHandler(follows=True)
    async with node_with(handler) as node:
        endpoint = node.plug(ENDPOINT, [FakeDRADriver()])
        node.plug("ann.sock", colour("squatter"), uid=ANN)
        await node.settled(patience=0.0)
        link = handler.links["/plugins/ann.sock"]
        channel = await link.connect()
        root = node.plug("root.sock", colour("gpu"))
        await trio.sleep(1)
        assert (link.active, endpoint.connections, channel.closed) == (False, 0, True)
        for timeout in (0, 10):
            with pytest.raises(NoConnectionError) as caught:
                await link.connect(timeout=timeout)
            assert (str(caught.value), caught.value.gone, trio.current_time()) == (REASON, False, 1.0)
        with pytest.raises(NoConnectionError) as refused:
            _ = link.channel
        assert str(refused.value) == REASON
        assert node.state("ann.sock") == "registered"
        root.stop()
        await trio.sleep(1)
        assert await link.connect() is link.channel


async def test_a_plugin_that_is_displaced_while_it_waits_for_its_endpoint_waits_no_more(
    autojump_clock: MockClock,
) -> None:
    handler = FakeHandler(follows=True)
    async with node_with(handler) as node, trio.open_nursery() as nursery:
        node.plug("ann.sock", colour("squatter"), uid=ANN)
        await node.settled(patience=0.0)

        @nursery.start_soon
        async def _() -> None:
            with pytest.raises(NoConnectionError, match=r"belongs to Colour 'gpu'"):
                await handler.links["/plugins/ann.sock"].connect(timeout=60)
            assert trio.current_time() < 2

        await trio.sleep(1)
        node.plug("root.sock", colour("gpu"))


# --- DRA drivers ------------------------------------------------------------------------------------------------------


def driver(node: SimulatedNode, socket: str, endpoint: str, *, serves: bool = True) -> FakeDRADriver:
    """Plug in an instance of Ann's driver, which tells the health of a device; its endpoint is another process."""
    fake = FakeDRADriver((*USUAL_SERVICES, HEALTH))
    fake.show(DeviceReport("pool-0", socket[0], DRADeviceHealth.HEALTHY, timeout=3600))
    if serves:
        node.plug(endpoint, [fake], uid=ANN)
    node.plug(socket, FakePlugin("DRAPlugin", NAME, ("v1.DRAPlugin", HEALTH), endpoint), uid=ANN)
    return fake


async def test_a_displaced_instance_of_a_dra_driver_prepares_no_claims(autojump_clock: MockClock) -> None:
    """Its calls would reach the driver of another name. The older instance, which has its endpoint, is used instead."""
    claim = DRAClaim("default", "uid-1", "train")
    async with node_with(FakeHandler(follows=True)) as node:
        older = driver(node, "a.sock", "/plugins/.a.sock")
        await trio.sleep(1)
        newer = driver(node, "b.sock", ENDPOINT)
        await trio.sleep(2)
        assert (shown(node).active, shown(node, "b.sock").active) == (False, True)
        root = node.plug("root.sock", colour("gpu"))
        await trio.sleep(2)
        assert (shown(node).active, shown(node, "b.sock").active) == (True, False)
        await node.supervisor.dra_driver(NAME).prepare([claim])
        assert (older.prepared, newer.prepared) == ({"uid-1": claim}, {})
        status = shown(node, "b.sock")
        assert (status.health, status.health_reason) == (Health.DISCONNECTED, REASON)
        assert dict(status.facts)["usable"] == "yes, by 1 instance"
        assert not [key for key in dict(status.facts) if key.startswith("device.")]
        assert [key for key in dict(shown(node).facts) if key.startswith("device.")] == ["device.pool-0/a"]
        root.stop()
        await trio.sleep(60)
        assert dict(shown(node, "b.sock").facts)["devices"] == "1 healthy, 0 unhealthy, 0 unknown"
