"""Plugins whose servers say that they go away, and go on with the stream that is open, as grpc-go's do at a set age.

Such a server takes no other call on that connection, and closes it only once its streams have ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
from trio.testing import MockClock

from plugind.actors.simulation.network import Listener
from plugind.actors.simulation.streams import ServerEnd
from plugind.protocol.plugins.health import Health
from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as devices
from plugind.protocol.proto import dra_health_v1_pb2 as dra
from plugind.protocol.proto.health_v1_pb2 import HealthCheckResponse
from plugind.testing import DEFAULT_CONFIG, Accepting, FakePlugin, SimulatedNode
from plugind.tests.actors.handlers.raw_endpoints import ENDPOINT, Answer, Endpoint, sends
from plugind.tests.actors.registration.timelines import shown
from plugind.tests.wire.hostile import answer, data, goaway, headers, message

V1 = "v1.DRAResourceHealth"
SERVING = HealthCheckResponse(status=HealthCheckResponse.SERVING).SerializeToString()
DEVICE = dra.DeviceHealth(
    device=dra.DeviceIdentifier(pool_name="pool", device_name="gpu"),
    health=dra.HEALTHY,
    health_check_timeout_seconds=3600,
)
LIST = devices.ListAndWatchResponse(devices=[devices.Device(ID="d0", health="Healthy")]).SerializeToString()
REPORT = dra.NodeWatchResourcesResponse(devices=[DEVICE]).SerializeToString()
DEVICE_PLUGIN = FakePlugin("DevicePlugin", "vendor.com/gpu", ("v1beta1",), ENDPOINT)
DRIVER = FakePlugin("DRAPlugin", "gpu.example.com", ("v1.DRAPlugin", V1), ENDPOINT)


def goes_away(body: bytes, after: float) -> Answer:
    """Send one message, and say after some seconds that the server goes away."""

    async def play(peer: ServerEnd, stream: int) -> None:
        # The first check is answered meanwhile: only one task at a time may send.
        await trio.sleep(0.01)
        await peer.send_all(headers(stream) + data(stream, message(body)))
        await trio.sleep(after)
        await peer.send_all(goaway(stream, 0))

    return play


def device_plugin(after: float) -> Endpoint:
    return Endpoint(list_and_watch=goes_away(LIST, after))


def driver(after: float) -> Endpoint:
    health = sends(lambda stream: answer(stream, SERVING))
    return Endpoint(health, goes_away(REPORT, after), watch=f"/{V1}/NodeWatchResources")


@asynccontextmanager
async def registered(endpoint: Endpoint, plugin: FakePlugin) -> AsyncIterator[tuple[SimulatedNode, Listener]]:
    async with SimulatedNode(attrs.evolve(DEFAULT_CONFIG, hung_after=None)) as node, trio.open_nursery() as nursery:
        listener = endpoint.listen(node)
        nursery.start_soon(listener.run)
        node.plug("a.sock", plugin)
        yield node, listener
        nursery.cancel_scope.cancel()


async def test_a_device_plugin_that_goes_away_is_healthy_and_its_stream_goes_on(autojump_clock: MockClock) -> None:
    """It is checked over another connection: calls for devices would be made there, too."""
    endpoint = device_plugin(5)
    async with registered(endpoint, DEVICE_PLUGIN) as (node, listener):
        await trio.sleep(2)
        for _ in range(300):
            await trio.sleep(1)
            assert (shown(node).health, shown(node).health_reason) == (Health.HEALTHY, None)
        assert (endpoint.calls.count(endpoint.watch), listener.accepted, len(listener.connections)) == (1, 2, 2)
        assert len(endpoint.calls) > 8, "it is checked each 30 s"


async def test_a_device_plugin_that_closes_connections_without_a_stream_is_connected_to_ever_less(
    autojump_clock: MockClock,
) -> None:
    """It takes no other connection. Its list still holds, so its devices are well; but no call could be made."""
    endpoint = device_plugin(5)
    async with registered(endpoint, DEVICE_PLUGIN) as (node, listener):
        await trio.sleep(100)
        first, second = listener.connections
        listener.accepting = Accepting.CLOSES
        second.reset()
        await trio.sleep(0.5)
        assert shown(node).health is Health.DISCONNECTED
        accepted = listener.accepted
        await trio.sleep(61)
        assert listener.accepted == accepted + 6, "1, 3, 7, 15, 31 and 61 s after it was closed"
        listener.accepting = Accepting.SERVES
        await trio.sleep(40)
        assert (shown(node).health, listener.connections[0]) == (Health.HEALTHY, first)
        assert endpoint.calls.count(endpoint.watch) == 1


async def test_a_driver_that_goes_away_is_connected_to_anew(autojump_clock: MockClock) -> None:
    endpoint = driver(5)
    async with registered(endpoint, DRIVER) as (node, listener):
        await trio.sleep(2)
        seen = set()
        for _ in range(300):
            await trio.sleep(1)
            seen.add((shown(node).health, dict(shown(node).facts)["usable"]))
        assert seen == {(Health.HEALTHY, "yes, by 1 instance")}
        facts = dict(shown(node).facts)
        assert (facts["device-health"], facts["devices"]) == (V1, "1 healthy, 0 unhealthy, 0 unknown")
        # Each connection goes away after 5 s, which is found out by the first check, at some time within 30 s.
        assert 10 <= listener.accepted <= 60
        assert len(listener.connections) == 1
