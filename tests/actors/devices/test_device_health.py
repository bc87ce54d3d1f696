"""The health of device plugins: their stream, and checks of an endpoint that keeps its connection and hangs.

Each test is a timeline in virtual time of a simulated node. A process that hangs, as after SIGSTOP, keeps its sockets
and its connections, and answers nothing: only a call with a deadline finds it (consumers E.1).
"""

from __future__ import annotations

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.protocol.plugins.devices import Device
from plugind.protocol.plugins.health import Health
from plugind.testing import FakePlugin, PluggedIn, SimulatedNode
from plugind.tests.actors.registration.timelines import shown

FOUR = tuple(Device(f"gpu-{number}") for number in range(4))
SILENT = "no answer within 3s"


def plug(node: SimulatedNode, socket: str, service: FakeDevices, name: str = "vendor.com/gpu") -> PluggedIn:
    return node.plug(socket, FakePlugin("DevicePlugin", name, ("v1beta1",), serves=[service]))


def health(node: SimulatedNode, socket: str = "a.sock") -> tuple[Health | None, str | None]:
    return shown(node, socket).health, shown(node, socket).health_reason


async def turned(node: SimulatedNode, *, away_from: Health) -> None:
    """Return once the health of ``a.sock`` is another one."""
    async with node.supervisor.watch() as changes:
        async for plugin in changes:
            if plugin.health is not away_from:
                break
    # The node reads the same changes, in a task of its own.
    await wait_all_tasks_blocked()


async def allocatable(node: SimulatedNode) -> list[tuple[int, int]]:
    return [(resource.capacity, resource.allocatable) for resource in await node.supervisor.devices()]


async def test_a_device_plugin_that_hangs_is_unhealthy_within_a_minute_and_stays_registered(
    autojump_clock: MockClock,
) -> None:
    """Nobody noticed it before: its connection and its stream stay open."""
    service = FakeDevices(FOUR)
    async with SimulatedNode() as node:
        plug(node, "a.sock", service)
        await node.settled()
        await trio.sleep(100)
        assert health(node) == (Health.HEALTHY, None)
        service.options_delay = 1e9
        before = node.timeline("a.sock")
        hung = trio.current_time()
        await turned(node, away_from=Health.HEALTHY)
        assert trio.current_time() - hung <= 60
        assert health(node) == (Health.UNHEALTHY, SILENT)
        # Health touches neither the registration nor the devices, which are as the last list says.
        assert node.timeline("a.sock") == before
        assert (node.state("a.sock"), shown(node).generation, shown(node).active) == ("registered", 1, True)
        assert await allocatable(node) == [(4, 4)]
        assert (service.streams, len(service.streamed)) == (1, 1)
        await trio.sleep(3600)
        assert health(node) == (Health.UNHEALTHY, SILENT)
        service.options_delay = 0.0
        back = trio.current_time()
        await turned(node, away_from=Health.UNHEALTHY)
        assert trio.current_time() - back <= 40
        assert health(node) == (Health.HEALTHY, None)
        assert (node.timeline("a.sock"), service.streamed) == (before, service.streamed[:1])


async def test_device_plugins_that_have_just_answered_are_not_asked_again_at_once(autojump_clock: MockClock) -> None:
    """A check asks what the registration has asked. In a process that answers slowly it delays other registrations."""
    services = [FakeDevices(FOUR) for _ in range(30)]
    async with SimulatedNode() as node:
        for number, service in enumerate(services):
            plugin = FakePlugin("DevicePlugin", f"vendor.com/gpu-{number}", ("v1beta1",), serves=[service])
            node.plug(f"{number}.sock", plugin)
        await node.settled()
        # Health is shown within two seconds. The checks are spread over 30 s, so these have a few of them.
        await trio.sleep(2)
        assert {shown.health for shown in node.statuses.values()} == {Health.HEALTHY}
        assert 30 <= sum(service.asked for service in services) < 40


async def test_a_plugin_that_refuses_to_say_its_options_is_unhealthy_with_its_own_text(
    autojump_clock: MockClock,
) -> None:
    """An error answer is a failure, also while lists come; one success makes it healthy."""
    service = FakeDevices(FOUR)
    async with SimulatedNode() as node:
        plug(node, "a.sock", service)
        await node.settled()
        service.options_error = GRPCError(Status.UNIMPLEMENTED, "gone")
        await trio.sleep(60)
        service.show(*FOUR[:3])
        await trio.sleep(1)
        reason = "failed to get device plugin options: UNIMPLEMENTED: gone"
        assert health(node) == (Health.UNHEALTHY, reason)
        assert await allocatable(node) == [(3, 3)]
        service.options_error = None
        await trio.sleep(40)
        assert health(node) == (Health.HEALTHY, None)


async def test_what_is_wrong_with_the_stream_counts_before_the_checks(autojump_clock: MockClock) -> None:
    """The worse of two findings is shown, and of two equally bad ones that of the stream, which is known at once."""
    service = FakeDevices(FOUR)
    async with SimulatedNode() as node:
        plugin = plug(node, "a.sock", service)
        await node.settled()
        service.options_delay = 1e9
        await trio.sleep(60)
        assert health(node) == (Health.UNHEALTHY, SILENT)
        service.stream_error = GRPCError(Status.UNAVAILABLE, "starting")
        service.end()
        await trio.sleep(10)
        assert health(node) == (Health.UNHEALTHY, "ListAndWatch is not open: UNAVAILABLE: starting")
        service.stream_error = None
        await trio.sleep(30)
        # The stream is open again and all is well with it, but the plugin still answers nothing.
        assert service.streams == 1
        assert health(node) == (Health.UNHEALTHY, SILENT)
        plugin.reset()
        await trio.sleep(0.5)
        assert health(node)[0] is Health.DISCONNECTED
        service.options_delay = 0.0
        await trio.sleep(40)
        # What the checks have found ends with the connection.
        assert health(node) == (Health.HEALTHY, None)
