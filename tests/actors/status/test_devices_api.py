"""Devices on the status socket: the list, the stream, the description and the metrics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.devices.state import MemoryStore, StateStore
from plugind.actors.devices.unit import Devices
from plugind.actors.http.server import HttpRequest, HttpResponse
from plugind.actors.status.api import Api, Memory, StatusConfig
from plugind.actors.status.devices_api import DEADLINE, DevicesApi
from plugind.protocol.devices.messages import (
    DevicesMessage,
    InstanceAdded,
    InstanceRemoved,
    InstanceRole,
    ListLost,
    ListReceived,
)
from plugind.protocol.errors import StateError
from plugind.protocol.leases.drains import NODE, Drain, DrainTarget
from plugind.protocol.leases.leases_json import drain_to_json
from plugind.protocol.leases.replies import LeasesSnapshot
from plugind.protocol.leases.values import Pool
from plugind.protocol.logs.lines import SILENT
from plugind.protocol.messages.reconciler import ReconcilerMessage
from plugind.protocol.messages.status import RegisterRefused
from plugind.protocol.plugins.devices import Device, DeviceList, DeviceOptions
from plugind.protocol.plugins.info import DEVICE, Plugin, PluginInfo
from plugind.protocol.plugins.status import StateName
from plugind.tests.actors.status.bench import bench, body_of, changed

GPU = "vendor.com/gpu"
SOCKET = "/r/gpu.sock"


def wall() -> float:
    return trio.current_time() + 1000.0


def added(socket: str, name: str = GPU, options: DeviceOptions | None = None) -> InstanceAdded:
    plugin = Plugin(DEVICE, name, socket, ("v1beta1",), socket, 1)
    return InstanceAdded(plugin, options or DeviceOptions(), f"socket {socket}", trio.current_time())


def listed(socket: str, *healths: str) -> ListReceived:
    devices = DeviceList(Device(f"d{number}", health, (number,)) for number, health in enumerate(healths))
    return ListReceived(socket, 1, devices, trio.current_time())


@attrs.define
class Node:
    """A devices actor with the routes about it."""

    devices: Devices
    api: Api
    nursery: trio.Nursery

    async def tell(self, *messages: DevicesMessage) -> None:
        for message in messages:
            self.devices.inbox.send_nowait(message)
        await wait_all_tasks_blocked()

    async def get(self, path: str, **query: str) -> HttpResponse:
        return await self.api(HttpRequest("GET", path, query, b""))

    async def watch(self, **query: str) -> list[bytes]:
        """Open the stream; its lines are put into the list that is returned."""
        response = await self.get("/v1/devices/watch", **query)
        assert (response.status, response.endless) == (200, True)
        lines: list[bytes] = []

        async def send(piece: bytes) -> None:
            lines.extend(piece.splitlines())

        assert response.write is not None
        self.nursery.start_soon(response.write, send)
        await wait_all_tasks_blocked()
        return lines


@asynccontextmanager
async def running(store: StateStore | None = None, *, config: StatusConfig | None = None) -> AsyncIterator[Node]:
    devices = Devices(store or MemoryStore(), SILENT)
    to_reconciler, asked = trio.open_memory_channel[ReconcilerMessage](2)
    with to_reconciler, asked:
        async with trio.open_nursery() as nursery:
            await devices.open()
            nursery.start_soon(devices.run)
            config = config or StatusConfig(wall=wall)
            yield Node(devices, Api(config, Memory(), to_reconciler, tuple, DevicesApi(wall, devices.inbox)), nursery)
            nursery.cancel_scope.cancel()


async def test_the_list_has_each_resource_with_its_plugins_and_its_devices(autojump_clock: MockClock) -> None:
    async with running() as node:
        options = DeviceOptions(get_preferred_allocation_available=True)
        await node.tell(added("/a", options=options), InstanceRole("/a", 1, active=True), listed("/a", "Healthy"))
        await trio.sleep(5.0)
        await node.tell(listed("/a", "Healthy", "Sick"))
        await trio.sleep(1.0)
        answer = json.loads(await body_of(await node.get("/v1/devices")))
    assert answer == {
        "time": "1970-01-01T00:16:46.000Z",
        "problem": None,
        "observes": False,
        "drains": [],
        "resources": [
            {
                "resource": GPU,
                "state": "listed",
                "reason": None,
                "age": 6.0,
                "since": "1970-01-01T00:16:40.000Z",
                "goes_in": None,
                "capacity": 2,
                "allocatable": 1,
                "last_capacity": None,
                "plugin": "/a",
                "plugins": [
                    {
                        "socket": "/a",
                        "generation": 1,
                        "endpoint": "/a",
                        "source": "socket /a",
                        "active": True,
                        "pre_start_required": False,
                        "get_preferred_allocation_available": True,
                        "lists": 2,
                        "last_list": "1970-01-01T00:16:45.000Z",
                        "last_list_ago": 1.0,
                        "devices": 2,
                        "healthy": 1,
                        "lost_since": None,
                        "reason": None,
                        "warning": None,
                    }
                ],
                "devices": [
                    {
                        "id": "d0",
                        "health": "Healthy",
                        "healthy": True,
                        "age": 6.0,
                        "since": "1970-01-01T00:16:40.000Z",
                        "numa": [0],
                    },
                    {
                        "id": "d1",
                        "health": "Sick",
                        "healthy": False,
                        "age": 1.0,
                        "since": "1970-01-01T00:16:45.000Z",
                        "numa": [1],
                    },
                ],
            }
        ],
    }


async def test_one_resource_can_be_asked_for_by_its_name(autojump_clock: MockClock) -> None:
    async with running() as node:
        assert json.loads(await body_of(await node.get("/v1/devices")))["resources"] == []
        unknown = await node.get("/v1/devices", resource=GPU)
        assert (unknown.status, b"there is none" in unknown.body) == (404, True)
        await node.tell(added("/a"), listed("/a", "Healthy"), added("/b", "v.com/b"), listed("/b"))
        answer = json.loads(await body_of(await node.get("/v1/devices", resource="v.com/b")))
        assert [resource["resource"] for resource in answer["resources"]] == ["v.com/b"]
        unknown = await node.get("/v1/devices", resource="v.com/c")
        assert (unknown.status, b"there is v.com/b, vendor.com/gpu" in unknown.body) == (404, True)
        wrong = await node.get("/v1/devices", name=GPU)
        assert (wrong.status, b"/v1/devices takes resource" in wrong.body) == (400, True)


async def test_devices_are_shown_with_their_pools(autojump_clock: MockClock) -> None:
    known = LeasesSnapshot(0.0, pools=(Pool("lab", GPU, frozenset({"d1"})),))
    answers = [known, attrs.evolve(known, withheld="the state was lost")]

    async def leases(_: float) -> LeasesSnapshot:
        return answers.pop(0)

    async with running() as node:
        await node.tell(added("/a"), InstanceRole("/a", 1, active=True), listed("/a", "Healthy", "Healthy"))
        node.api.devices.leases = leases
        shown = []
        while answers:
            (found,) = json.loads(await body_of(await node.get("/v1/devices")))["resources"]
            shown.append([(each.get("pool"), each.get("withheld")) for each in found["devices"]])
    all_of_them = "all devices are withheld"
    assert shown == [[(None, None), ("lab", None)], [(None, all_of_them), ("lab", all_of_them)]]


async def test_a_refused_call_of_register_is_told_until_a_plugin_has_registered(autojump_clock: MockClock) -> None:
    """It was in the log alone."""
    info = PluginInfo(DEVICE, GPU, SOCKET, ("v1beta1",))
    async with bench() as status:
        # As the status actor does when it serves.
        status.api.devices = DevicesApi(wall, refused_calls=status.memory.refused_calls)
        await status.take(RegisterRefused("/r", GPU, "a.sock", 0, 812, "it is no good"))
        await trio.sleep(12)
        said = "the last Register call for it, by pid 812, was refused 12 s ago: it is no good"
        for path, query in ((f"/plugins/{GPU}", {}), ("/v1/devices", {"resource": GPU})):
            unknown = await status.get(path, **query)
            assert (unknown.status, said in json.loads(unknown.body)["error"]) == (404, True)
        (refused,) = json.loads(await body_of(await status.get("/v1/devices/refused")))
        assert (refused["resource"], refused["age"], refused["reason"]) == (GPU, 12.0, "it is no good")
        other = attrs.evolve(info, type="CSIPlugin")
        await status.take(attrs.evolve(changed("csi", StateName.REGISTERED), info=other))
        assert await status.json("/v1/devices/refused") != []
        await status.take(attrs.evolve(changed("gpu", StateName.REGISTERED), info=info))
        assert await status.json("/v1/devices/refused") == []


async def test_the_stream_has_each_resource_and_then_each_change(autojump_clock: MockClock) -> None:
    async with running() as node:
        await node.tell(added("/a"), listed("/a", "Healthy"))
        lines = await node.watch(heartbeat="60")
        assert [json.loads(line)["allocatable"] if line else "" for line in lines] == [1, ""]
        lines.clear()
        await trio.sleep(1.0)
        await node.tell(ListLost("/a", 1, "the stream ended", trio.current_time()))
        await node.tell(InstanceRemoved("/a", 1, trio.current_time()))
        await trio.sleep(350.0)
        seen = [json.loads(line) for line in lines if line]
        assert [
            (resource["time"], resource["state"], resource["capacity"], resource["allocatable"]) for resource in seen
        ] == [
            ("1970-01-01T00:16:41.000Z", "lost", 1, 0),
            ("1970-01-01T00:16:41.000Z", "lost", 1, 0),
            ("1970-01-01T00:21:41.000Z", "gone", 0, 0),
        ]
        assert lines.count(b"") == 5


async def test_a_drained_device_has_the_narrowest_drain_and_all_are_listed(autojump_clock: MockClock) -> None:
    """Those of other resources are left out where one resource is asked for; 503 if nobody says what is drained."""
    made = (Drain(target, 0, 1.0) for target in (NODE, DrainTarget(GPU, "d1"), DrainTarget("v.com/a")))
    node_drain, device, other = drains = {drain.target: drain for drain in made}
    shown = {target: drain_to_json(drain) for target, drain in drains.items()}
    async with running() as node:

        async def say(_: float) -> LeasesSnapshot:
            return LeasesSnapshot(0.0, drains=drains)

        async def hang(_: float) -> None:
            return None

        node.api.devices.leases = say
        await node.tell(added("/a"), InstanceRole("/a", 1, active=True), listed("/a", "Healthy", "Healthy"))
        answer = json.loads(await body_of(await node.get("/v1/devices", resource=GPU)))
        assert answer["drains"] == [shown[node_drain], shown[device]]
        [resource] = answer["resources"]
        assert [each["drained"] for each in resource["devices"]] == answer["drains"]
        answer = json.loads(await body_of(await node.get("/v1/devices")))
        assert answer["drains"] == [shown[node_drain], shown[other], shown[device]]
        node.api.devices.leases = hang
        failed = await node.get("/v1/devices")
        assert (failed.status, b"has not said within 3 s what is drained" in failed.body) == (503, True)


async def test_a_devices_actor_that_hangs_costs_an_answer_and_nothing_else(autojump_clock: MockClock) -> None:
    """Each question has a deadline; metrics go without the devices (fault 86)."""
    hanging = DevicesApi(wall, Devices(MemoryStore(), SILENT).inbox)
    to_reconciler, asked = trio.open_memory_channel[ReconcilerMessage](2)
    with to_reconciler, asked:
        api = Api(StatusConfig(wall=wall), Memory(), to_reconciler, tuple, hanging)
        answer = await api(HttpRequest("GET", "/v1/devices", {}, b""))
        assert (answer.status, trio.current_time()) == (503, DEADLINE)
        assert b"the devices actor has not answered within 3 s" in answer.body
        metrics = await body_of(await api(HttpRequest("GET", "/metrics", {}, b"")))
        assert b"plugind_devices" not in metrics
        assert b"plugind_plugins" in metrics
        expecting = attrs.evolve(api, config=StatusConfig(wall=wall, expected_devices={GPU: 2}))
        metrics = await body_of(await expecting(HttpRequest("GET", "/metrics", {}, b"")))
        assert b'plugind_expected_devices_missing{resource_name="vendor.com/gpu"} 2.0' in metrics
        (awaited,) = json.loads((await expecting(HttpRequest("GET", "/readyz", {}, b""))).body)["awaiting"]
        assert awaited == "the expected devices (the devices actor has not answered within 3 s)"
        stream = await body_of(await api(HttpRequest("GET", "/v1/devices/watch", {"heartbeat": "1"}, b"")))
        assert stream == b'{"error": "the devices actor has not answered within 3 s"}\n'


async def test_metrics_count_devices_and_lost_lists_by_resource(autojump_clock: MockClock) -> None:
    async with running() as node:
        await node.tell(added("/a"), listed("/a", "Healthy", "Healthy", "Sick"))
        await node.tell(added("/b", "v.com/b"), listed("/b", "Healthy"), ListLost("/b", 1, "gone", 0.0))
        lines = (await body_of(await node.get("/metrics"))).decode().splitlines()
    assert [line for line in lines if line.startswith("plugind_device")] == [
        'plugind_devices{health="healthy",resource_name="vendor.com/gpu"} 2.0',
        'plugind_devices{health="unhealthy",resource_name="vendor.com/gpu"} 1.0',
        'plugind_devices{health="healthy",resource_name="v.com/b"} 0.0',
        'plugind_devices{health="unhealthy",resource_name="v.com/b"} 1.0',
        'plugind_device_streams_ended_total{resource_name="v.com/b"} 1.0',
        'plugind_device_streams_ended_total{resource_name="vendor.com/gpu"} 0.0',
    ]


@pytest.mark.parametrize("end", ["7 are listed", "one is sick", "the plugin stops"])
async def test_expected_devices_that_are_missing_are_told_for_as_long_as_they_are(
    autojump_clock: MockClock, end: str
) -> None:
    """Five minutes after a plugin had stopped, no series told of its devices, and no alert had fired."""

    async def shown() -> tuple[str, object]:
        text = (await body_of(await node.get("/metrics"))).decode()
        series = 'plugind_expected_devices_missing{resource_name="vendor.com/gpu"} '
        (number,) = [line.removeprefix(series) for line in text.splitlines() if line.startswith(series)]
        return number, json.loads((await node.get("/readyz")).body)["awaiting"]

    async with running(config=StatusConfig(wall=wall, expected_devices={GPU: 8})) as node:
        assert await shown() == ("8.0", ["8 devices of vendor.com/gpu (0 are healthy)"])
        await node.tell(added("/a"), InstanceRole("/a", 1, active=True), listed("/a", *["Healthy"] * 8))
        assert await shown() == ("0.0", [])
        if end == "the plugin stops":
            await node.tell(InstanceRemoved("/a", 1, trio.current_time()))
            missing = 8
        else:
            await node.tell(listed("/a", *["Healthy"] * 7, *(["Sick"] if end == "one is sick" else [])))
            missing = 1
        lacking = f"{missing}.0", [f"8 devices of vendor.com/gpu ({8 - missing} are healthy)"]
        assert await shown() == lacking
        await trio.sleep(3600.0)
        assert await shown() == lacking
        await node.tell(added("/b"), InstanceRole("/b", 1, active=True), listed("/b", *["Healthy"] * 9))
        if end == "the plugin stops":
            assert await shown() == ("0.0", [])


class FullStore(MemoryStore):
    """A store that can be read, and not be written."""

    async def begin(self) -> None:
        raise StateError("the disk is full")


async def test_metrics_tell_of_a_state_that_cannot_be_kept(autojump_clock: MockClock) -> None:
    """It is also the ``problem`` of the list, and what could be read is awaited (fault 88)."""
    async with running(FullStore({GPU: 4})) as node:
        await trio.sleep(1.5)
        lines = (await body_of(await node.get("/metrics"))).decode().splitlines()
        answer = json.loads(await body_of(await node.get("/v1/devices")))
        described = await node.get(f"/plugins/{GPU}")
    assert {"plugind_state_failing 1.0", "plugind_state_failures_total 2.0"} <= set(lines)
    why = "neither a plugin nor the configuration offers it since the restart"
    awaited = f"the resource {GPU} is awaited, and goes in 298 s: {why}"
    assert (described.status, awaited in described.body.decode()) == (404, True)
    (resource,) = answer["resources"]
    assert answer["problem"] == "the disk is full"
    assert (resource["state"], resource["capacity"], resource["last_capacity"]) == ("awaited", 0, 4)
    async with running() as node:
        lines = (await body_of(await node.get("/metrics"))).decode().splitlines()
    assert {"plugind_state_failing 0.0", "plugind_state_failures_total 0.0"} <= set(lines)


@pytest.mark.parametrize("generation", [1, 2])
async def test_the_description_of_a_device_plugin_tells_of_its_devices(
    autojump_clock: MockClock, generation: int
) -> None:
    """Not of those of another generation at its path."""
    info = PluginInfo(DEVICE, GPU, SOCKET, ("v1beta1",))
    async with running() as node, bench() as status:
        await node.tell(added(SOCKET), InstanceRole(SOCKET, 1, active=True), listed(SOCKET, "Healthy", "Sick"))
        status.api.devices = node.api.devices
        await status.take(attrs.evolve(changed("gpu", StateName.REGISTERED, generation=generation), info=info))
        (described,) = json.loads(await body_of(await status.get("/plugins/gpu.sock")))
    if generation == 2:
        assert "device_plugin" not in described
    else:
        found = described["device_plugin"]
        assert (found["resource"], found["state"], found["standby"], found["active"]) == (GPU, "listed", 0, True)
        assert (found["devices"], found["healthy"]) == (2, 1)
        assert [(device["id"], device["health"]) for device in found["unhealthy"]] == [("d1", "Sick")]
