"""The handler of DRA drivers: a connection to each instance, roles, health, and drivers that are gone.

Each test is a timeline in virtual time of a simulated node. The connection to the endpoint is the sign of life, as in
the kubelet (consumers C.2); calls are in ``test_dra_calls``, and the health of devices in ``test_dra_device_health``.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from plugind.actors.simulation.dra_drivers import DRACall, FakeDRADriver
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import HistoryEntry
from plugind.testing import FakePlugin, PluggedIn, SimulatedNode
from plugind.tests.actors.registration.timelines import shown

NAME = "gpu.example.com"
REFUSED = "no connection to the endpoint /plugins/{}: Connection refused"


def plug(
    node: SimulatedNode,
    socket: str = "a.sock",
    driver: FakeDRADriver | None = None,
    *,
    endpoint: str = "",
    versions: Sequence[str] = ("v1.DRAPlugin",),
    name: str = NAME,
    listening: bool = True,
) -> PluggedIn:
    services = [FakeDRADriver() if driver is None else driver]
    plugin = FakePlugin("DRAPlugin", name, versions, endpoint and node.path(endpoint), serves=services)
    return node.plug(socket, plugin, listening=listening)


def health(node: SimulatedNode, socket: str = "a.sock") -> tuple[Health | None, str | None]:
    return shown(node, socket).health, shown(node, socket).health_reason


def fact(node: SimulatedNode, key: str, socket: str = "a.sock") -> str | None:
    return dict(shown(node, socket).facts).get(key)


def roles(node: SimulatedNode) -> dict[str, bool | None]:
    return {plugin.socket[-6:]: plugin.active for plugin in node.statuses.values()}


async def gone(node: SimulatedNode, socket: str = "a.sock") -> list[HistoryEntry]:
    """Return the events of a socket that say that its driver is gone."""
    plugins = (await node.snapshot()).plugins
    entries = [entry for plugin in plugins if plugin.socket == node.path(socket) for entry in plugin.history]
    return [entry for entry in entries if (entry.reason or "").startswith("driver-gone: ")]


# --- the connection ---------------------------------------------------------------------------------------------------


async def test_a_driver_is_registered_connected_and_shown(autojump_clock: MockClock) -> None:
    """The e2e line "one connection for all"."""
    async with SimulatedNode() as node:
        plug(node, versions=("v1beta1.DRAPlugin", "v1.DRAPlugin"))
        await node.settled()
        await trio.sleep(900)
        assert (node.state("a.sock"), shown(node).active, health(node)) == ("registered", True, (Health.HEALTHY, None))
        assert shown(node).facts == (
            ("service", "v1beta1.DRAPlugin"),
            ("connected", "since 1970-01-01T00:00:00.000Z"),
            ("usable", "yes, by 1 instance"),
        )
        assert len(node.network.linked) == 1


async def test_the_endpoint_may_listen_later_than_the_driver_registers(autojump_clock: MockClock) -> None:
    """The e2e line "an endpoint that listens only after registration"; consumers C.1: Register never dials."""
    async with SimulatedNode() as node:
        registrar = plug(node, endpoint="own/.dra")
        await node.settled()
        await trio.sleep(2)
        assert (node.state("a.sock"), registrar.calls[-1].registered) == ("registered", True)
        reason = "no connection to the endpoint /plugins/own/.dra: No such file or directory"
        assert health(node) == (Health.DISCONNECTED, reason)
        assert fact(node, "usable") == "no since 1970-01-01T00:00:00.000Z"
        await trio.sleep(100)
        endpoint = plug(node, "own/.dra")
        # It was tried at 0, 1, 3, 7, 15, 31, 61 and 91 s.
        await trio.sleep_until(120.9)
        assert health(node)[0] is Health.DISCONNECTED
        await trio.sleep_until(122)
        assert (health(node), endpoint.connections) == ((Health.HEALTHY, None), 1)
        assert fact(node, "connected") == "since 1970-01-01T00:02:01.000Z"


async def test_a_connection_that_ends_is_made_again_after_one_second_doubling_to_30(autojump_clock: MockClock) -> None:
    """Proposal 3; the e2e line "works after the service reconnects"."""
    async with SimulatedNode() as node:
        plugged = plug(node)
        await trio.sleep_until(100)
        plugged.crash()
        await trio.sleep_until(100.5)
        why = "no connection to the endpoint /plugins/a.sock: the peer closed the connection"
        assert (health(node)[0], health(node)[1]) == (Health.DISCONNECTED, why)
        assert (node.state("a.sock"), fact(node, "usable")) == ("registered", "no since 1970-01-01T00:01:40.000Z")
        await trio.sleep_until(101.5)
        assert health(node) == (Health.DISCONNECTED, REFUSED.format("a.sock"))
        plugged.listen()
        await trio.sleep_until(104.5)
        assert (health(node), fact(node, "connected")) == ((Health.HEALTHY, None), "since 1970-01-01T00:01:43.000Z")
        assert (node.state("a.sock"), shown(node).generation) == ("registered", 1)


# --- roles ------------------------------------------------------------------------------------------------------------


async def test_the_older_instance_is_active_until_the_newer_one_is_connected(autojump_clock: MockClock) -> None:
    """TestConnectionHandling; consumers C.2: in a surge the old one serves until the new one accepts."""
    async with SimulatedNode() as node:
        plug(node, "a.sock")
        await node.settled()
        newer = plug(node, "b.sock", endpoint="own/.b")
        await node.settled()
        await trio.sleep(2)
        assert roles(node) == {"a.sock": True, "b.sock": False}
        assert fact(node, "usable", "b.sock") == "yes, by 1 instance"
        endpoint = plug(node, "own/.b")
        await trio.sleep(60)
        assert roles(node)["a.sock"] is False
        assert roles(node)["b.sock"] is True
        assert fact(node, "usable") == fact(node, "usable", "b.sock") == "yes, by 2 instances"
        endpoint.crash()
        await trio.sleep(0.1)
        assert (roles(node)["a.sock"], roles(node)["b.sock"]) == (True, False)
        newer.stop()
        await trio.sleep(60)
        assert (shown(node).active, await gone(node)) == (True, [])


# --- drivers that are gone --------------------------------------------------------------------------------------------


async def test_a_driver_is_gone_after_30_s_without_a_connection_and_its_event_is_told_once(
    autojump_clock: MockClock,
) -> None:
    """Consumers C.3; the e2e line "unresponsiveness": the registration stays."""
    async with SimulatedNode() as node:
        plugged = plug(node)
        await trio.sleep_until(100)
        plugged.crash()
        await trio.sleep_until(129.9)
        assert await gone(node) == []
        await trio.sleep_until(900)
        (event,) = await gone(node)
        text = f"driver-gone: {NAME} has had no connected instance for 30 s (registered instances: 1)"
        assert (event.time, event.reason, event.state) == (130.0, text, "registered")
        plugged.listen()
        await trio.sleep_until(1000)
        assert fact(node, "usable") == "yes, by 1 instance"
        plugged.crash()
        await trio.sleep_until(2000)
        assert [event.time for event in await gone(node)] == [130.0, 1030.0]


# --- health -----------------------------------------------------------------------------------------------------------


async def test_a_driver_without_a_health_service_is_asked_once_for_each_connection(autojump_clock: MockClock) -> None:
    """Proposal 3: the connection alone counts then. Nothing notices that such a process hangs, as in the kubelet."""
    driver = FakeDRADriver((*FakeDRADriver().services, "grpc.health.v1.Health"))
    driver.errors[DRACall.CHECK] = GRPCError(Status.UNIMPLEMENTED, "unknown service")
    async with SimulatedNode() as node:
        plugged = plug(node, driver=driver)
        await trio.sleep_until(1000)
        assert (driver.called(DRACall.CHECK), health(node)) == (1, (Health.HEALTHY, None))
        plugged.reset()
        await trio.sleep_until(2000)
        assert (driver.called(DRACall.CHECK), health(node)) == (2, (Health.HEALTHY, None))


async def test_a_driver_whose_health_service_does_not_answer_is_unhealthy_within_a_minute(
    autojump_clock: MockClock,
) -> None:
    """Consumers C.2: a hung process keeps its connection. Health touches neither the role nor the registration."""
    driver = FakeDRADriver((*FakeDRADriver().services, "grpc.health.v1.Health"))
    async with SimulatedNode() as node:
        plug(node, driver=driver)
        await trio.sleep_until(1000)
        assert (driver.called(DRACall.CHECK) > 20, health(node)) == (True, (Health.HEALTHY, None))
        driver.hangs.add(DRACall.CHECK)
        await trio.sleep(60)
        assert (health(node), shown(node).failed_checks) == ((Health.UNHEALTHY, "no answer within 3s"), 3)
        assert (shown(node).active, fact(node, "usable")) == (True, "yes, by 1 instance")
        driver.hangs.clear()
        driver.serving = False
        await trio.sleep(60)
        assert health(node) == (Health.UNHEALTHY, "its health service says NOT_SERVING")
        driver.serving = True
        await trio.sleep(40)
        assert health(node) == (Health.HEALTHY, None)
        assert (node.state("a.sock"), shown(node).generation, await gone(node)) == ("registered", 1, [])
