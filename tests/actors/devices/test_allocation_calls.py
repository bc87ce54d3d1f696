"""The calls with which devices are leased, to a simulated plugin: what is asked, and what is said of each answer.

Each test is a timeline in virtual time of what the lease actor is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from plugind.actors.devices import calls as device_calls
from plugind.actors.devices.calls import ENDED, NOT_FOLLOWED
from plugind.actors.devices.handler import DevicePluginHandler
from plugind.actors.simulation.device_plugins import AllocationCall, FakeDevices
from plugind.protocol.devices.messages import InstanceAdded, InstanceMessage
from plugind.protocol.leases.answers import MAX_MESSAGE
from plugind.protocol.leases.messages import (
    AllocateAsked,
    Allocated,
    AllocationLost,
    AllocationRefused,
    CallMessage,
    PreferenceAsked,
    Preferred,
)
from plugind.protocol.leases.values import Answer, Mount, Node
from plugind.protocol.messages.addresses import Address
from plugind.protocol.plugins.devices import Device
from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as api
from plugind.testing import FakePlugin, PluggedIn, SimulatedNode

GPU = "vendor.com/gpu"
FOUR = tuple(Device(f"gpu-{number}") for number in range(4))
PREFERRED, ALLOCATE, PRE_START = AllocationCall.PREFERRED, AllocationCall.ALLOCATE, AllocationCall.PRE_START


@attrs.define(eq=False)
class Replies:
    """The lease actor: it keeps what it is told, with the times."""

    messages: list[tuple[float, CallMessage]] = attrs.Factory(list)

    def send_nowait(self, message: CallMessage, /) -> None:
        self.messages.append((round(trio.current_time(), 6), message))

    @property
    def all(self) -> list[CallMessage]:
        return [message for _, message in self.messages]


@attrs.define(eq=False)
class Bench:
    """A simulated node with one plugin, whose calls are made here."""

    service: FakeDevices
    replies: Replies = attrs.Factory(Replies)
    added: list[InstanceAdded] = attrs.Factory(list)
    node: SimulatedNode = attrs.field(init=False)
    plugin: PluggedIn = attrs.field(init=False)

    @node.default
    def _make_node(self) -> SimulatedNode:
        return SimulatedNode(handlers={"DevicePlugin": DevicePluginHandler(self)})

    @plugin.default
    def _plug(self) -> PluggedIn:
        plugin = FakePlugin("DevicePlugin", GPU, ("v1beta1",), serves=[self.service])
        return self.node.plug("a.sock", plugin)

    def send_nowait(self, message: InstanceMessage, /) -> None:
        """Be the devices actor, which learns the address of the calls."""
        if isinstance(message, InstanceAdded):
            self.added.append(message)

    def allocate(self, lease: str, *devices: str, pre_start: bool = False) -> None:
        self._calls.send_nowait(AllocateAsked(lease, GPU, devices, pre_start, self.replies, uid=0))

    def prefer(self, lease: str, available: tuple[str, ...], include: tuple[str, ...], size: int) -> None:
        self._calls.send_nowait(PreferenceAsked(lease, GPU, available, include, size, self.replies))

    @property
    def key(self) -> tuple[str, int]:
        return self.added[-1].plugin.socket, self.added[-1].plugin.generation

    @property
    def _calls(self) -> Address[AllocateAsked | PreferenceAsked]:
        calls = self.added[-1].calls
        assert calls is not None
        return calls

    def lost(self, lease: str, reason: str) -> AllocationLost:
        return AllocationLost(lease, GPU, self.key, reason)


@asynccontextmanager
async def serving(service: FakeDevices | None = None) -> AsyncIterator[Bench]:
    """Run a node on which a plugin with four devices is registered."""
    bench = Bench(service or FakeDevices(FOUR))
    async with bench.node as node:
        await node.settled()
        yield bench


# --- Allocate ---------------------------------------------------------------------------------------------------------


async def test_allocate_is_called_with_exactly_the_ids_and_its_answer_is_passed_on(autojump_clock: MockClock) -> None:
    """TestAllocate: one container is asked for, with the ids in order; all of its answer comes back."""
    async with serving() as bench:
        bench.service.answer = api.AllocateResponse(
            container_responses=[
                api.ContainerAllocateResponse(
                    envs={"GPUS": "1"},
                    mounts=[api.Mount(host_path="/h", container_path="/c", read_only=True)],
                    devices=[api.DeviceSpec(host_path="/dev/x", container_path="/dev/y", permissions="mrw")],
                    annotations={"a/b": "c"},
                    cdi_devices=[api.CDIDevice(name="vendor.com/gpu=1")],
                )
            ]
        )
        bench.allocate("one", "gpu-3", "gpu-1")
        await trio.sleep(1)
    assert bench.service.allocations == [(ALLOCATE, ("gpu-3", "gpu-1"))]
    assert bench.replies.all == [
        Allocated(
            "one",
            GPU,
            Answer(
                {"GPUS": "1"},
                (Mount("/h", "/c", read_only=True),),
                (Node("/dev/x", "/dev/y", "mrw"),),
                {"a/b": "c"},
                ("vendor.com/gpu=1",),
            ),
        )
    ]


RESET = "device plugin PreStartContainer rpc failed with err: "


@pytest.mark.parametrize(
    ("call", "error", "refused", "reason"),
    [
        (ALLOCATE, GRPCError(Status.FAILED_PRECONDITION, "hot\x1b[2J"), True, r"FAILED_PRECONDITION: hot\x1b[2J"),
        (PRE_START, GRPCError(Status.INTERNAL, "no reset"), True, f"{RESET}INTERNAL: no reset"),
        (ALLOCATE, GRPCError(Status.DEADLINE_EXCEEDED, "too late"), False, "no answer within 30 s"),
        (PRE_START, None, False, f"{RESET}no answer within 30 s"),
    ],
)
async def test_a_refusal_holds_nothing_and_a_call_that_may_go_on_leaves_the_allocation_uncertain(
    call: AllocationCall, error: GRPCError | None, refused: bool, reason: str, autojump_clock: MockClock
) -> None:
    """Consumers B.6: the texts are the kubelet's. A server gives up a call at the caller's deadline, too, while the
    plugin's thread goes on, and to hand out a device that is being reset is as bad as one that is being prepared."""
    async with serving() as bench:
        if error is None:
            bench.service.hangs.add(call)
        else:
            bench.service.errors[call] = error
        bench.allocate("one", "gpu-0", pre_start=True)
        await trio.sleep(31)
    assert bench.replies.all == [AllocationRefused("one", GPU, reason) if refused else bench.lost("one", reason)]


async def test_an_answer_that_does_not_come_in_time_leaves_the_allocation_uncertain(autojump_clock: MockClock) -> None:
    """After 30 seconds; the kubelet waits for ever (k8s 117435). Those behind it have their turn then."""
    async with serving() as bench:
        bench.service.hangs.add(ALLOCATE)
        bench.allocate("one", "gpu-0")
        bench.prefer("two", ("gpu-1",), (), 1)
        began = trio.current_time()
        await trio.sleep(31)
        times = [time - began for time, _ in bench.replies.messages]
    assert bench.replies.all == [bench.lost("one", "no answer within 30 s"), Preferred("two", GPU, ("gpu-1",))]
    assert times == [30.0, 30.0]
    assert [message.seconds for message in bench.replies.all if isinstance(message, AllocationLost)] == [30.0]


async def test_a_plugin_that_crashes_amid_allocate_leaves_it_uncertain(autojump_clock: MockClock) -> None:
    """What only waited was never sent, and is refused."""
    async with serving() as bench:
        bench.service.hangs.add(ALLOCATE)
        bench.allocate("one", "gpu-0")
        bench.allocate("two", "gpu-1")
        await trio.sleep(1)
        bench.plugin.crash()
        await trio.sleep(1)
        lost, refused = bench.replies.all
    assert bench.service.allocations == [(ALLOCATE, ("gpu-0",))]
    assert isinstance(lost, AllocationLost)
    assert lost.key == bench.key
    assert lost.reason.startswith("UNAVAILABLE: ")
    assert isinstance(refused, AllocationRefused)
    assert refused.lease == "two"
    assert refused.reason.startswith("no connection to the endpoint")
    assert (lost.seconds, refused.seconds) == (1.0, None)


async def test_the_end_of_a_follow_answers_each_call(autojump_clock: MockClock) -> None:
    """The plugin is deregistered while it hangs: the call that it has is lost, the others were never sent."""
    async with serving() as bench:
        bench.service.hangs.add(ALLOCATE)
        bench.allocate("one", "gpu-0")
        bench.allocate("two", "gpu-1")
        bench.prefer("three", ("gpu-2",), (), 1)
        await trio.sleep(1)
        bench.plugin.unlink()
        await bench.node.settled()
        bench.allocate("four", "gpu-3")
        assert bench.replies.all == [
            bench.lost("one", ENDED),
            AllocationRefused("two", GPU, ENDED),
            Preferred("three", GPU, error=ENDED),
            AllocationRefused("four", GPU, NOT_FOLLOWED),
        ]
    assert bench.service.allocations == [(ALLOCATE, ("gpu-0",))]


async def test_a_follow_that_crashes_answers_each_call_and_takes_calls_again_later(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BrokenError(Exception):
        pass

    def broken(_: Answer) -> Answer:
        raise BrokenError

    async with serving() as bench:
        with monkeypatch.context() as patch:
            patch.setattr(device_calls, "checked", broken)
            bench.allocate("one", "gpu-0")
            bench.allocate("two", "gpu-1")
            await trio.sleep(0.5)
            bench.allocate("three", "gpu-2")
        assert bench.replies.all == [
            bench.lost("one", ENDED),
            AllocationRefused("two", GPU, ENDED),
            AllocationRefused("three", GPU, NOT_FOLLOWED),
        ]
        await trio.sleep(2)
        bench.allocate("four", "gpu-3")
        await trio.sleep(1)
        assert bench.replies.all[3:] == [Allocated("four", GPU, Answer({"DEVICES": "gpu-3"}))]
        assert bench.node.state("a.sock") == "registered"


async def test_one_call_is_made_at_a_time_in_order(autojump_clock: MockClock) -> None:
    async with serving() as bench:
        bench.service.delays[ALLOCATE] = 10.0
        began = trio.current_time()
        for number in range(4):
            bench.allocate(str(number), f"gpu-{number}")
        await trio.sleep(15)
        assert [devices for _, devices in bench.service.allocations] == [("gpu-0",), ("gpu-1",)]
        await trio.sleep(30)
    assert [time - began for time, _ in bench.replies.messages] == [10.0, 20.0, 30.0, 40.0]
    assert [message.lease for message in bench.replies.all] == ["0", "1", "2", "3"]
    assert [message.seconds for message in bench.replies.all if isinstance(message, Allocated)] == [10.0] * 4


async def test_the_line_of_calls_has_an_end(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_calls, "MAX_WAITING", 2)
    async with serving() as bench:
        bench.service.hangs.add(ALLOCATE)
        bench.allocate("0", "gpu-0")
        await trio.sleep(1)
        for number in range(1, 4):
            bench.allocate(str(number), f"gpu-{number}")
        assert bench.replies.all == [AllocationRefused("3", GPU, device_calls.BUSY)]


# --- nonsense ---------------------------------------------------------------------------------------------------------


def containers(*answers: api.ContainerAllocateResponse) -> api.AllocateResponse:
    return api.AllocateResponse(container_responses=answers)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (containers(), "no containers return in allocation response: it is empty"),
        (
            containers(api.ContainerAllocateResponse(devices=[api.DeviceSpec(host_path="null", container_path="/x")])),
            'the host path "null" is not absolute',
        ),
        (containers(api.ContainerAllocateResponse(mounts=[api.Mount()] * 1025)), "it has more than 1024 mounts"),
    ],
)
async def test_an_answer_that_cannot_be_used_holds_nothing(
    answer: api.AllocateResponse, text: str, autojump_clock: MockClock
) -> None:
    """Consumers B.6. The plugin has answered, so it is not at work any more."""
    async with serving() as bench:
        bench.service.answer = answer
        bench.allocate("one", "gpu-0", pre_start=True)
        await trio.sleep(1)
    assert bench.replies.all == [
        AllocationRefused("one", GPU, f"the answer of the device plugin to Allocate cannot be used: {text}")
    ]
    assert bench.service.allocations == [(ALLOCATE, ("gpu-0",))]


#: An answer of a hundred thousand entries, each of two bytes: all of them would be made into objects.
TINY = api.ContainerAllocateResponse(mounts=[api.Mount()] * 200_000)


@pytest.mark.parametrize(
    "answer", [containers(TINY), containers(*[api.ContainerAllocateResponse()] * 200_000)], ids=["mounts", "containers"]
)
async def test_an_answer_of_very_many_entries_is_refused_unparsed(
    answer: api.AllocateResponse, autojump_clock: MockClock
) -> None:
    """Four megabytes of them took a tenth of a second, in which the daemon did nothing else."""
    async with serving() as bench:
        bench.service.answer = answer
        bench.allocate("one", "gpu-0")
        await trio.sleep(1)
    (refused,) = bench.replies.all
    assert isinstance(refused, AllocationRefused)
    assert f"is no valid AllocateResponse: it has {answer.ByteSize()} bytes, at most {MAX_MESSAGE}" in refused.reason


# --- PreStartContainer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("required", [False, True])
async def test_pre_start_container_is_called_once_if_it_is_asked_for(required: bool, autojump_clock: MockClock) -> None:
    """TestDevicePreStartContainer: after Allocate, with the same ids; what Allocate answered is kept."""
    async with serving() as bench:
        bench.allocate("one", "gpu-0", "gpu-1", pre_start=required)
        await trio.sleep(1)
    ids = ("gpu-0", "gpu-1")
    assert bench.service.allocations == [(ALLOCATE, ids), (PRE_START, ids)][: 1 + required]
    assert bench.replies.all == [Allocated("one", GPU, Answer({"DEVICES": "gpu-0,gpu-1"}))]


# --- GetPreferredAllocation -------------------------------------------------------------------------------------------


async def test_the_preferred_devices_are_asked_for_with_exactly_the_ids(autojump_clock: MockClock) -> None:
    """TestGetPreferredAllocation: what is available, what must be included, and the number."""
    asked: list[api.ContainerPreferredAllocationRequest] = []

    class Choosy(FakeDevices):
        def prefer(self, request: api.ContainerPreferredAllocationRequest) -> list[str]:
            asked.append(request)
            return ["gpu-2", "gpu-9"]

    async with serving(Choosy(FOUR)) as bench:
        bench.prefer("one", ("gpu-0", "gpu-2", "gpu-3"), ("gpu-2",), 2)
        await trio.sleep(1)
    assert asked == [
        api.ContainerPreferredAllocationRequest(
            available_deviceIDs=["gpu-0", "gpu-2", "gpu-3"], must_include_deviceIDs=["gpu-2"], allocation_size=2
        )
    ]
    # What is of no use in it is left out where devices are chosen.
    assert bench.replies.all == [Preferred("one", GPU, ("gpu-2", "gpu-9"))]


async def test_a_plugin_that_says_no_preference_is_not_waited_for(autojump_clock: MockClock) -> None:
    """Consumers B.6: the text is the kubelet's, which waits for ever."""
    failed = "device plugin GetPreferredAllocation rpc failed with err: "
    async with serving() as bench:
        bench.service.errors[PREFERRED] = GRPCError(Status.UNIMPLEMENTED, "no preference")
        bench.prefer("one", ("gpu-0",), (), 1)
        await trio.sleep(1)
        bench.service.errors.clear()
        bench.service.hangs.add(PREFERRED)
        bench.prefer("two", ("gpu-0",), (), 1)
        began = trio.current_time()
        await trio.sleep(6)
    assert bench.replies.all == [
        Preferred("one", GPU, error=f"{failed}UNIMPLEMENTED: no preference"),
        Preferred("two", GPU, error=f"{failed}no answer within 5 s"),
    ]
    assert bench.replies.messages[1][0] - began == 5.0
