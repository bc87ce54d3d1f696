"""The handler of device plugins: options at Register, then lists for as long as the plugin is registered.

Each test is a timeline in virtual time of what the devices actor is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise

import attrs
import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from plugind.actors.devices.follower import SHARED
from plugind.actors.devices.handler import DevicePluginHandler
from plugind.actors.handlers.paced import pause_after
from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.actors.simulation.node import DEFAULT_CONFIG
from plugind.protocol.devices.messages import InstanceAdded, InstanceMessage, InstanceRole, ListLost, ListReceived
from plugind.protocol.devices.resources import Resources
from plugind.protocol.plugins.devices import Device, DeviceOptions
from plugind.protocol.plugins.health import Health
from plugind.protocol.proto.deviceplugin_v1beta1_pb2 import ListAndWatchResponse
from plugind.protocol.settings.config import Config, DevicePluginDirectory
from plugind.protocol.wire.grpc import Newest
from plugind.testing import FakePlugin, PluggedIn, SimulatedNode
from plugind.tests.actors.registration.timelines import shown

GPU = "vendor.com/gpu"
FOUR = tuple(Device(f"gpu-{number}") for number in range(4))


@attrs.define
class Said:
    """What a handler tells the devices actor, with the times."""

    messages: list[tuple[float, InstanceMessage]] = attrs.Factory(list)

    def send_nowait(self, message: InstanceMessage, /) -> None:
        self.messages.append((round(trio.current_time(), 6), message))

    def of(self, kind: type[InstanceMessage]) -> list[tuple[float, InstanceMessage]]:
        return [(time, message) for time, message in self.messages if isinstance(message, kind)]

    def lists(self) -> list[tuple[float, int, int]]:
        """Return when each list came, how many devices it has, and how many of them are healthy."""
        return [
            (time, len(message.devices), message.devices.healthy)
            for time, message in self.messages
            if isinstance(message, ListReceived)
        ]

    def losses(self) -> list[tuple[float, str]]:
        return [(time, message.reason) for time, message in self.messages if isinstance(message, ListLost)]

    def kinds(self) -> list[tuple[float, str]]:
        return [(time, type(message).__name__) for time, message in self.messages]

    def capacities(self) -> list[tuple[float, int, int]]:
        """Return the capacity of the resource, and how many devices can be allocated, after each message."""
        resources, seen = Resources(), list[tuple[float, int, int]]()
        for time, message in self.messages:
            resources.handle(message, time)
            status = resources.status(GPU)
            now = (0, 0) if status is None else (status.capacity, status.allocatable)
            if not seen or seen[-1][1:] != now:
                seen.append((time, *now))
        return seen


@attrs.define
class Bench:
    """A simulated node that tells a list what its devices are."""

    said: Said = attrs.Factory(Said)
    config: Config = DEFAULT_CONFIG
    node: SimulatedNode = attrs.field(init=False)

    @node.default
    def _make_node(self) -> SimulatedNode:
        handler = DevicePluginHandler(self.said, strict=self.config.strict)
        return SimulatedNode(self.config, handlers={"DevicePlugin": handler})

    def plug(
        self, socket: str, devices: FakeDevices | Iterable[Device], endpoint: str = ""
    ) -> tuple[PluggedIn, FakeDevices]:
        service = devices if isinstance(devices, FakeDevices) else FakeDevices(devices)
        plugin = FakePlugin("DevicePlugin", GPU, ("v1beta1",), endpoint, serves=[service])
        return self.node.plug(socket, plugin), service

    def health(self, socket: str = "a.sock") -> tuple[Health | None, str | None]:
        status = shown(self.node, socket)
        return status.health, status.health_reason


@asynccontextmanager
async def listing() -> AsyncIterator[tuple[Bench, PluggedIn, FakeDevices]]:
    """Run a node on which a plugin with four devices is registered."""
    bench = Bench()
    async with bench.node as node:
        plugin, service = bench.plug("a.sock", FOUR)
        await node.settled()
        yield bench, plugin, service


# --- Register ---------------------------------------------------------------------------------------------------------


async def test_a_device_plugin_is_asked_for_its_options_and_followed(autojump_clock: MockClock) -> None:
    bench = Bench()
    async with bench.node as node:
        options = DeviceOptions(pre_start_required=True)
        plugin, service = bench.plug("a.sock", FakeDevices(FOUR, options))
        await node.settled()
        await trio.sleep(60)
        assert bench.health() == (Health.HEALTHY, None)
        service.show(Device("gpu-0", "Unhealthy"), *FOUR[1:])
        await trio.sleep(10)
        plugin.stop()
        await node.settled()
    added = bench.said.messages[0][1]
    assert isinstance(added, InstanceAdded)
    assert (added.options, added.source) == (options, "socket /plugins/a.sock")
    assert bench.said.kinds()[0] == (0.0, "InstanceAdded")
    assert bench.said.kinds()[-1] == (70.0, "InstanceRemoved")
    assert bench.said.lists() == [(0.0, 4, 4), (60.0, 4, 3)]
    assert [message.active for _, message in bench.said.messages if isinstance(message, InstanceRole)][-1]
    assert bench.said.capacities()[:3] == [(0.0, 0, 0), (0.0, 4, 4), (60.0, 4, 3)]
    assert (len(service.streamed), service.streams) == (1, 0)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (GRPCError(Status.UNIMPLEMENTED, "no such method"), "UNIMPLEMENTED: no such method"),
        (GRPCError(Status.INTERNAL), "INTERNAL: no message"),
    ],
)
async def test_a_plugin_whose_options_call_fails_is_refused_in_the_kubelets_words(
    error: GRPCError, text: str, autojump_clock: MockClock
) -> None:
    """e2e_node device_plugin_failures_test, consumers F.2: it is not used, and the text is shown."""
    bench = Bench()
    async with bench.node as node:
        service = FakeDevices(FOUR)
        service.options_error = error
        plugin, _ = bench.plug("a.sock", service)
        await trio.sleep(0.2)
        assert node.state("a.sock") == "waiting"
        assert (service.asked, service.streamed) == (1, [])
        sent = [call.error for call in plugin.calls if call.registered is False]
        service.options_error = None
        await node.settled()
        assert node.state("a.sock") == "registered"
    assert [f"failed to get device plugin options: {text}" in said for said in sent] == [True]
    assert bench.said.kinds()[:2] == [(0.0, "InstanceRemoved"), (0.5, "InstanceAdded")]


async def test_a_plugin_whose_endpoint_never_comes_is_refused_after_ten_seconds(autojump_clock: MockClock) -> None:
    bench = Bench()
    async with bench.node as node:
        bench.plug("a.sock", FOUR, "/plugins/own.sock")
        await trio.sleep(9.9)
        assert node.state("a.sock") == "registering"
        await trio.sleep(0.2)
        assert node.state("a.sock") == "waiting"
        assert (
            "failed to dial device plugin: no connection to the endpoint /plugins/own.sock: "
            "No such file or directory (tried for 10 s)" in (shown(node).reason or "")
        )


async def test_a_failed_register_leaves_the_older_plugin_as_it_is(autojump_clock: MockClock) -> None:
    """The kubelet drops the older one before it has dialed the newer (consumers B.1)."""
    async with listing() as (bench, _, old):
        broken = FakeDevices()
        broken.options_error = GRPCError(Status.INTERNAL, "broken")
        bench.plug("b.sock", broken)
        await trio.sleep(30)
        assert old.streams == 1
    assert bench.said.capacities() == [(0.0, 0, 0), (0.0, 4, 4)]


# --- lists ------------------------------------------------------------------------------------------------------------


async def test_the_first_list_may_come_late(autojump_clock: MockClock) -> None:
    bench = Bench()
    async with bench.node as node:
        service = FakeDevices(FOUR)
        service.list_delay = 15.0
        bench.plug("a.sock", service)
        await node.settled()
        await trio.sleep(5)
        assert bench.health() == (Health.STARTING, "its first list of devices has not come")
        await trio.sleep(5.5)
        assert bench.health() == (Health.UNHEALTHY, "no device list after 10s")
        await trio.sleep(5)
        assert bench.health() == (Health.HEALTHY, None)
        assert service.streamed == [0.0]
    assert bench.said.losses() == [(10.0, "no device list after 10s")]
    assert bench.said.lists() == [(15.0, 4, 4)]


async def test_a_stream_that_ends_is_opened_again_with_doubling_delays(autojump_clock: MockClock) -> None:
    """The kubelet never does (k8s 125501). All devices are unhealthy meanwhile, and the capacity stays."""
    async with listing() as (bench, _, service):
        await trio.sleep(100)
        service.stream_error = GRPCError(Status.UNAVAILABLE, "starting")
        service.end()
        await trio.sleep(0.5)
        assert bench.health() == (Health.UNHEALTHY, "ListAndWatch is not open: the plugin has ended ListAndWatch")
        await trio.sleep(100)
        assert bench.health() == (Health.UNHEALTHY, "ListAndWatch is not open: UNAVAILABLE: starting")
        service.stream_error = None
        await trio.sleep(30)
        assert bench.health() == (Health.HEALTHY, None)
        assert bench.node.status("a.sock").generation == 1  # type: ignore[union-attr]
    assert [round(later - earlier, 3) for earlier, later in pairwise(service.streamed[1:])] == [2, 4, 8, 16, 30, 30, 30]
    assert bench.said.losses()[:2] == [
        (100.0, "the plugin has ended ListAndWatch"),
        (101.0, "ListAndWatch has ended: UNAVAILABLE: starting"),
    ]
    assert bench.said.capacities()[1:3] == [(0.0, 4, 4), (100.0, 4, 0)]
    assert bench.said.capacities()[-1][1:] == (4, 4)
    assert service.most_streams == 1


async def test_a_broken_connection_is_seen_at_once_and_made_again(autojump_clock: MockClock) -> None:
    async with listing() as (bench, plugin, service):
        await trio.sleep(50)
        plugin.reset()
        await trio.sleep(0.5)
        health, reason = bench.health()
        assert health is Health.DISCONNECTED
        assert (reason or "").startswith("ListAndWatch has ended: UNAVAILABLE: ")
        await trio.sleep(10)
        assert bench.health() == (Health.HEALTHY, None)
    assert service.streamed == [0.0, 51.0]
    assert bench.said.capacities()[1:] == [(0.0, 4, 4), (50.0, 4, 0), (51.0, 4, 4)]


async def test_a_plugin_without_list_and_watch_is_not_asked_again(autojump_clock: MockClock) -> None:
    """Until another program is at its endpoint: it comes with another connection."""
    bench = Bench()
    async with bench.node as node:
        plugin, service = bench.plug("a.sock", FOUR)
        service.stream_error = GRPCError(Status.UNIMPLEMENTED, "no")
        await node.settled()
        await trio.sleep(3600)
        assert service.streamed == [0.0]
        assert bench.health() == (Health.UNHEALTHY, "ListAndWatch is not open: UNIMPLEMENTED: no")
        service.stream_error = None
        plugin.reset()
        await trio.sleep(10)
        assert bench.health() == (Health.HEALTHY, None)
    assert service.streamed == [0.0, 3601.0]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            ListAndWatchResponse(devices=[{"ID": "x" * 5 * 1024 * 1024}]),
            "a message of 5242890 bytes over the limit of 4194304 (limit message_bytes)",
        ),
        (
            ListAndWatchResponse(devices=[{"ID": "x" * 300}]),
            "the id of a device has 300 characters, at most 256 are allowed",
        ),
        (ListAndWatchResponse(devices=[{"ID": str(n)} for n in range(10_001)]), "it has more than 10000 devices"),
    ],
)
async def test_a_list_over_a_limit_is_refused_and_the_stream_is_opened_again(
    message: ListAndWatchResponse, text: str, autojump_clock: MockClock
) -> None:
    """Faults 50 and 51: the reason is shown, and the devices of the list before are unhealthy."""
    async with listing() as (bench, _, service):
        await trio.sleep(40)
        service.send(message)
        await trio.sleep(4)
        assert bench.health() == (Health.UNHEALTHY, f"ListAndWatch is not open: the list of devices is refused: {text}")
        service.show(*FOUR)
        await trio.sleep(10)
        assert bench.health() == (Health.HEALTHY, None)
        assert bench.node.status("a.sock").generation == 1  # type: ignore[union-attr]
    assert service.streamed == [0.0, 41.0, 43.0, 47.0]
    assert service.most_streams == 1
    assert bench.said.capacities()[1:] == [(0.0, 4, 4), (40.0, 4, 0), (47.0, 4, 4)]


async def test_of_a_flood_of_lists_ten_a_second_are_passed_on_and_the_last_one_counts(
    autojump_clock: MockClock,
) -> None:
    async with listing() as (bench, _, service):
        await trio.sleep(10)
        for number in range(1000):
            service.show(*FOUR[: number % 4])
            await trio.sleep(0.01)
        service.show(Device("last"))
        await trio.sleep(1)
    times = [time for time, _, _ in bench.said.lists()]
    assert 50 < len(times) <= 103
    assert all(later - earlier >= 0.1 - 1e-6 for earlier, later in pairwise(times))
    assert bench.said.lists()[-1][1] == 1


def test_a_plugin_that_sends_more_than_lists_need_is_slowed_down() -> None:
    """A megabyte of lists a second, or a thousand lists; an ordinary list costs a tenth of a second at most."""
    assert pause_after(Newest(b"", 1, 60_000)) == 0.1
    assert pause_after(Newest(b"", 1, 600_000)) == pytest.approx(0.57, abs=0.01)
    assert pause_after(Newest(b"", 1, 3 * 1024 * 1024)) == 3.0
    assert pause_after(Newest(b"", 3072, 20_000)) == 3.0
    assert pause_after(Newest(b"", 60_000, 300_000)) == 5.0
    assert pause_after(Newest(b"", 1, 600_000), 2500) == 12.5


# --- as strict as the kubelet ----------------------------------------------------------------------------------------

STRICT = attrs.evolve(DEFAULT_CONFIG, strict=True)
ONCE = "; with --strict it is not opened again until the plugin registers anew"


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_strict_node_never_opens_a_stream_again_that_has_ended(
    at_once: bool, autojump_clock: MockClock
) -> None:
    """e2e_node device_plugin_failures_test, consumers F.2: a stream that fails at once is 0/0 and never tried again;
    one that fails later is n/0."""
    bench = Bench(config=STRICT)
    async with bench.node as node:
        plugin, service = bench.plug("a.sock", FOUR)
        if at_once:
            service.stream_error = GRPCError(Status.UNAVAILABLE, "starting")
        await node.settled()
        await trio.sleep(100)
        if not at_once:
            service.end(GRPCError(Status.UNAVAILABLE, "starting"))
        service.stream_error = None
        await trio.sleep(3600)
        assert bench.health() == (Health.UNHEALTHY, f"ListAndWatch is not open: UNAVAILABLE: starting{ONCE}")
        plugin.reset()
        await trio.sleep(3600)
        assert node.state("a.sock") == "registered"
    assert (service.streamed, len(bench.said.losses())) == ([0.0], 1)
    assert bench.said.capacities()[1:] == ([] if at_once else [(0.0, 4, 4), (100.0, 4, 0)])


async def test_a_strict_node_follows_a_plugin_again_that_registers_anew(autojump_clock: MockClock) -> None:
    """By a new socket, as by a call of Register (k8s 125501: only that helps)."""
    bench = Bench(config=attrs.evolve(STRICT, device_plugins=DevicePluginDirectory("/dp")))
    async with bench.node as node:
        await node.settled()
        _, service = bench.plug("/dp/a.sock", FOUR)
        found, discovered = bench.plug("b.sock", FOUR)
        node.register("a.sock", GPU)
        await node.settled()
        await trio.sleep(60)
        service.end()
        discovered.end()
        await trio.sleep(60)
        assert bench.health("/dp/a.sock") == (
            Health.UNHEALTHY,
            f"ListAndWatch is not open: the plugin has ended ListAndWatch{ONCE}",
        )
        again = node.register("a.sock", GPU)
        found.restart()
        await trio.sleep(10)
        assert again.answers == [("OK", "")]
        assert bench.health("/dp/a.sock") == bench.health("b.sock") == (Health.HEALTHY, None)
    assert (service.streamed, discovered.streamed) == ([0.0, 120.0], [0.0, 120.0])


# --- several instances ------------------------------------------------------------------------------------------------


async def test_the_capacity_never_falls_in_a_surge(autojump_clock: MockClock) -> None:
    """A new plugin is stopped before its first list: the old one stays active, until the new one has sent it.

    TestDevicePluginReRegistration: afterwards the devices are the new one's; k8s 121994: the end of the old one does
    not touch the new one.
    """
    async with listing() as (bench, old, _):
        stopped = FakeDevices()
        stopped.lists = False
        bench.plug("b.sock", stopped)
        await trio.sleep(60)
        assert (bench.node.state("a.sock"), bench.node.state("b.sock")) == ("registered", "registered")
        stopped.show(*(Device(f"new-{number}") for number in range(4)))
        await trio.sleep(5)
        old.stop()
        await trio.sleep(60)
    assert bench.said.capacities() == [(0.0, 0, 0), (0.0, 4, 4)]
    roles = [
        (time, message.socket[-6:], message.active)
        for time, message in bench.said.messages
        if isinstance(message, InstanceRole)
    ]
    assert sorted(role for role in roles if role[0] > 0 and role[1:] != ("b.sock", False)) == [
        (60.0, "a.sock", False),
        (60.0, "b.sock", True),
    ]


async def test_a_plugin_that_is_lost_passes_its_role_to_one_that_is_not(autojump_clock: MockClock) -> None:
    bench = Bench()
    async with bench.node as node:
        bench.plug("a.sock", FOUR)
        await node.settled()
        _, newer = bench.plug("b.sock", FOUR)
        await node.settled()
        await trio.sleep(5)
        newer.stream_error = GRPCError(Status.UNAVAILABLE)
        newer.end()
        await trio.sleep(5)
        status = shown(node)
        assert status.active
    assert bench.said.capacities()[-1][1:] == (4, 4)


# --- plugins that register by a call ----------------------------------------------------------------------------------


def bench_with_calls() -> Bench:
    return Bench(config=attrs.evolve(DEFAULT_CONFIG, device_plugins=DevicePluginDirectory("/dp")))


async def test_a_plugin_that_calls_is_followed_and_goes_with_its_socket(autojump_clock: MockClock) -> None:
    """No watcher looks at its socket. The follower finds it gone when it connects again, and the plugin leaves."""
    bench = bench_with_calls()
    async with bench.node as node:
        await node.settled()
        plugin, service = bench.plug("/dp/a.sock", FOUR)
        attempt = node.register("a.sock", GPU, pid=812)
        await node.settled()
        assert attempt.answers == [("OK", "")]
        await trio.sleep(60)
        plugin.stop()
        await trio.sleep(10)
        assert node.status("/dp/a.sock") is None
    added = bench.said.messages[0][1]
    assert isinstance(added, InstanceAdded)
    assert added.source == "Register call of pid 812"
    assert bench.said.losses()[0][0] == 60.0
    assert bench.said.kinds()[-1] == (62.0, "InstanceRemoved")
    assert service.most_streams == 1


async def test_a_plugin_whose_socket_is_removed_stays_with_a_warning_as_long_as_its_stream_is_open(
    autojump_clock: MockClock,
) -> None:
    """Consumers-proposal 1, ListAndWatch. Nobody can connect to it again, which the liveness actor finds out."""
    bench = bench_with_calls()
    async with bench.node as node:
        await node.settled()
        _, service = bench.plug("/dp/a.sock", FOUR)
        node.register("a.sock", GPU)
        await node.settled()
        node.directory.unlink("/dp/a.sock")
        await trio.sleep(65)
        service.show(*FOUR[:3])
        await trio.sleep(600)
        status = shown(node, "/dp/a.sock")
        assert (status.state, status.health, status.generation) == ("registered", Health.HEALTHY, 1)
        assert (status.serving, status.not_serving) == (False, "its socket file is gone, so nobody can reach it")
        assert (len(service.streamed), service.streams) == (1, 1)
    assert bench.said.lists() == [(0.0, 4, 4), (65.0, 3, 3)]


async def test_a_plugin_that_waits_ten_seconds_before_it_calls_is_back_within_twenty(autojump_clock: MockClock) -> None:
    """Consumers B.3: the stub and the sample plugin of Kubernetes see ``kubelet.sock`` created, and wait so long."""
    bench = bench_with_calls()
    async with bench.node as node:
        await node.settled()
        bench.plug("/dp/dp.1", FOUR)
        node.register("dp.1", GPU)
        await node.settled()
        await node.stop()
        began = node.now
        await node.start()
        await node.settled()
        assert not node.directory.exists("/dp/dp.1")
        await trio.sleep(10)
        bench.plug("/dp/dp.2", FOUR)
        attempt = node.register("dp.2", GPU)
        await trio.sleep(2)
        assert (attempt.answers, bench.health("/dp/dp.2")) == ([("OK", "")], (Health.HEALTHY, None))
        assert node.now - began < 20
    assert bench.said.lists()[-1][1:] == (4, 4)


# --- two registrations of one endpoint --------------------------------------------------------------------------------


async def test_an_endpoint_that_is_registered_by_a_call_and_by_socket_has_one_stream(autojump_clock: MockClock) -> None:
    """Consumers B.3, consequence 5: SR-IOV's plugin has one channel of updates for all streams, which take updates from
    each other. The first registration follows its lists, and the other one stands by."""
    bench = bench_with_calls()
    async with bench.node as node:
        await node.settled()
        by_call, service = bench.plug("/dp/a.sock", FOUR)
        by_socket = node.plug("b.sock", FakePlugin("DevicePlugin", GPU, ("v1beta1",), by_call.path))
        node.register("a.sock", GPU)
        await node.settled()
        await trio.sleep(60)
        assert {node.state("/dp/a.sock"), node.state("b.sock")} == {"registered"}
        assert (len(service.streamed), service.streams) == (1, 1)
        service.show(*FOUR[:3], Device("gpu-3", "Unhealthy"))
        await trio.sleep(1)
        assert bench.said.capacities()[-1][1:] == (4, 3)
        healths = {bench.health("/dp/a.sock"), bench.health("b.sock")}
        assert healths == {(Health.HEALTHY, None), (Health.UNKNOWN, SHARED)}
        service.end()
        await trio.sleep(60)
        assert (service.most_streams, service.streams) == (1, 1)
        assert bench.said.capacities()[-1][1:] == (4, 3)
        by_socket.unlink()
        await trio.sleep(60)
        assert (service.most_streams, service.streams) == (1, 1)
        assert bench.health("/dp/a.sock") == (Health.HEALTHY, None)
        assert bench.said.capacities()[-1][1:] == (4, 3)
