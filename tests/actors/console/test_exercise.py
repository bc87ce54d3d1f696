"""``plugind probe --exercise`` against device plugins on a simulated node: each planted fault is found."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from plugind.actors.console.exercise import exercise
from plugind.actors.console.findings import Findings, ProbeStep, Verdict
from plugind.actors.grpc.client.channel import Channel
from plugind.actors.simulation.endpoints import MemoryEndpointFiles
from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as api
from plugind.protocol.wire.errors import DialError, DialFailure
from plugind.testing import AllocationCall, Device, DeviceOptions, FakeDevices, FakePlugin, PluggedIn, SimulatedNode

#: Not in a root, so the node does not see it.
SOCKET = "/elsewhere/gpu.sock"
WRONG, WARNING = Verdict.WRONG, Verdict.WARNING
UNIMPLEMENTED = GRPCError(Status.UNIMPLEMENTED, "Method not found!")


class Gpus(FakeDevices):
    """A device plugin with all calls, whose devices are nodes that exist."""

    def __init__(self) -> None:
        super().__init__([Device("gpu-0"), Device("gpu-1"), Device("gpu-2")], DeviceOptions(True, True))
        self.path = "/dev/null"

    def allocate(self, ids: list[str]) -> api.ContainerAllocateResponse:
        nodes = [api.DeviceSpec(host_path=self.path, container_path=f"/dev/{name}", permissions="rw") for name in ids]
        return api.ContainerAllocateResponse(devices=nodes)


#: Plants a fault in a plugin and its process.
Plan = Callable[[Gpus, PluggedIn], None]


async def exercised(plan: Plan, at: float = 0.0) -> dict[str, ProbeStep]:
    """Return what is found of a plugin in which ``plan`` plants faults after ``at`` seconds: the worst of each step."""
    found = Findings(lambda _: None)
    gpus = Gpus()
    async with SimulatedNode() as node:
        plugged = node.plug(SOCKET, FakePlugin("DevicePlugin", "example.com/gpu", serves=[gpus]))
        if not at:
            plan(gpus, plugged)
        files = MemoryEndpointFiles(node.directory, node.network)

        async def connect() -> Channel:
            await trio.lowlevel.checkpoint()
            try:
                endpoint = files.connect(SOCKET, lambda _: None)
            except OSError as error:
                raise DialError(DialFailure.REFUSED, SOCKET, "nobody listens") from error
            return Channel(endpoint.transport(), peer=endpoint.peer)

        async with trio.open_nursery() as nursery:
            if at:
                nursery.start_soon(_later, at, partial(plan, gpus, plugged))
            await exercise(found, connect)
    order = [Verdict.OK, Verdict.WARNING, Verdict.WRONG]
    return {step.step: step for step in sorted(found.steps, key=lambda step: order.index(step.verdict))}


def without_faults(gpus: Gpus, plugged: PluggedIn) -> None:
    pass


async def test_a_good_plugin_passes_each_step(autojump_clock: MockClock) -> None:
    found = await exercised(without_faults)
    assert {step.verdict for step in found.values()} == {Verdict.OK}
    assert {name: step.detail for name, step in found.items()} == {
        "ListAndWatch": "a list came, and no second one in 1 s; devices: 3",
        "health": "3 Healthy",
        "options": "GetPreferredAllocation is offered; PreStartContainer is required",
        "GetPreferredAllocation": '"gpu-2, gpu-0" for 2 of 3 with "gpu-2"',
        "Allocate": "of all 3: nodes /dev/null, /dev/null, /dev/null",
        "PreStartContainer": "of all 3",
        "serving": "after 3 s its stream is open, and it answers on a new connection",
    }


async def test_the_newest_of_the_first_lists_counts(autojump_clock: MockClock) -> None:
    found = await exercised(one_more, at=0.5)
    assert found["ListAndWatch"].detail == "2 lists came; devices: 4"
    assert found["Allocate"].detail.startswith("of all 4: ")


async def test_a_refusal_of_all_devices_at_once_is_a_warning(autojump_clock: MockClock) -> None:
    """Some plugins give one device to a container, whatever the kubelet counts."""

    def one_by_one(gpus: Gpus, plugged: PluggedIn) -> None:
        allocate = gpus.allocate

        def refuse(ids: list[str]) -> api.ContainerAllocateResponse:
            if len(ids) > 1:
                raise GRPCError(Status.INVALID_ARGUMENT, "one at a time")
            return allocate(ids)

        gpus.allocate = refuse  # type: ignore[method-assign]

    found = (await exercised(one_by_one))["Allocate"]
    assert (found.verdict, found.detail) == (WARNING, "of all 3: INVALID_ARGUMENT: one at a time")


def repeated(gpus: Gpus, plugged: PluggedIn) -> None:
    gpus.show(Device("gpu-0"), Device("gpu-0"), Device("gpu-1"))


def small_word(gpus: Gpus, plugged: PluggedIn) -> None:
    gpus.show(Device("gpu-0", "healthy"), Device("gpu-1"))


def empty(gpus: Gpus, plugged: PluggedIn) -> None:
    gpus.show()


def one_more(gpus: Gpus, plugged: PluggedIn) -> None:
    gpus.show(*(Device(f"gpu-{number}") for number in range(4)))


def silent(gpus: Gpus, plugged: PluggedIn) -> None:
    gpus.lists = False


def ends(gpus: Gpus, plugged: PluggedIn) -> None:
    gpus.stream_error = GRPCError(Status.OK)


def ends_in_order(gpus: Gpus, plugged: PluggedIn) -> None:
    gpus.end()


def exits(gpus: Gpus, plugged: PluggedIn) -> None:
    plugged.crash()


async def _later(seconds: float, do: Callable[[], None]) -> None:
    await trio.sleep(seconds)
    do()


def relative(gpus: Gpus, plugged: PluggedIn) -> None:
    gpus.path = "dev/null"


def missing(gpus: Gpus, plugged: PluggedIn) -> None:
    gpus.path = "/dev/none/gpu"


def no_container(gpus: Gpus, plugged: PluggedIn) -> None:
    gpus.answer = api.AllocateResponse()


def two_containers(gpus: Gpus, plugged: PluggedIn) -> None:
    gpus.answer = api.AllocateResponse(container_responses=[gpus.allocate(["gpu-0"])] * 2)


def nothing(gpus: Gpus, plugged: PluggedIn) -> None:
    gpus.answer = api.AllocateResponse(container_responses=[api.ContainerAllocateResponse()])


def prefers(*ids: str) -> Plan:
    def plan(gpus: Gpus, plugged: PluggedIn) -> None:
        gpus.prefer = lambda request: [*ids]  # type: ignore[method-assign]

    return plan


def lacks(call: AllocationCall) -> Plan:
    def plan(gpus: Gpus, plugged: PluggedIn) -> None:
        gpus.errors[call] = UNIMPLEMENTED

    return plan


def hangs(call: AllocationCall) -> Plan:
    def plan(gpus: Gpus, plugged: PluggedIn) -> None:
        gpus.hangs.add(call)

    return plan


PREFERRED, ALLOCATE, PRE_START = AllocationCall


@pytest.mark.parametrize(
    ("plan", "at", "step", "verdict", "words"),
    [
        (repeated, 0, "ListAndWatch", WRONG, "1 device has the id of another"),
        (small_word, 0, "health", WARNING, '"gpu-0" is "healthy": all words but Healthy mean unhealthy (1 of 2'),
        (empty, 0, "ListAndWatch", WRONG, "its list has no devices"),
        (silent, 0, "ListAndWatch", WRONG, "no device list after 10s"),
        (ends, 0, "ListAndWatch", WRONG, "the plugin ended it"),
        (ends, 0, "serving", WRONG, "the stream of ListAndWatch has ended"),
        (ends_in_order, 2, "serving", WRONG, "the stream of ListAndWatch has ended: the plugin ended it"),
        (exits, 0.5, "serving", WRONG, "nobody listens"),
        (exits, 2, "serving", WRONG, "nobody listens"),
        (relative, 0, "Allocate", WRONG, 'the host path "dev/null" is not absolute'),
        (missing, 0, "Allocate", WRONG, '"/dev/none/gpu" does not exist'),
        (no_container, 0, "Allocate", WRONG, "no containers return in allocation response"),
        (two_containers, 0, "Allocate", WRONG, "2 containers return"),
        (nothing, 0, "Allocate", WARNING, "the answer is empty"),
        (lacks(ALLOCATE), 0, "Allocate", WRONG, "UNIMPLEMENTED"),
        (hangs(ALLOCATE), 0, "Allocate", WRONG, "no answer within 30 s"),
        (prefers("gpu-2", "gpu-9"), 0, "GetPreferredAllocation", WRONG, '"gpu-9" is not available'),
        (prefers("gpu-2"), 0, "GetPreferredAllocation", WRONG, "these are not 2 different devices"),
        (prefers("gpu-2", "gpu-2"), 0, "GetPreferredAllocation", WRONG, "these are not 2 different devices"),
        (prefers("gpu-0", "gpu-1"), 0, "GetPreferredAllocation", WRONG, '"gpu-2" must be included'),
        (lacks(PREFERRED), 0, "GetPreferredAllocation", WRONG, "UNIMPLEMENTED"),
        (lacks(PRE_START), 0, "PreStartContainer", WRONG, "UNIMPLEMENTED"),
    ],
)
async def test_a_planted_fault_is_found(
    plan: Plan, at: float, step: str, verdict: Verdict, words: str, autojump_clock: MockClock
) -> None:
    found = (await exercised(plan, at))[step]
    assert (found.verdict, words in found.detail) == (verdict, True), found
