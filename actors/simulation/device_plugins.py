"""A fake device plugin that a script controls: its options, lists of devices, and faults of its calls."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...protocol.plugins.devices import Device, DeviceOptions
from ...protocol.proto import deviceplugin_v1beta1_pb2 as api
from ...protocol.proto.deviceplugin_v1beta1_grpc import DevicePluginBase
from .feeds import Feed
from .reactions import Reaction

if TYPE_CHECKING:
    from grpclib.server import Stream


T = TypeVar("T")


class AllocationCall(enum.StrEnum):
    """The calls that allocate devices."""

    PREFERRED = "GetPreferredAllocation"
    ALLOCATE = "Allocate"
    PRE_START = "PreStartContainer"


class FakeDevices(DevicePluginBase):
    """The service ``v1beta1.DevicePlugin`` with these ``devices``, on connections in memory or on a real socket.

    All public attributes can be changed while it serves. No method for scripts waits.
    """

    def __init__(self, devices: Iterable[Device] = (), options: DeviceOptions | None = None) -> None:
        #: The answer to GetDevicePluginOptions.
        self.options = DeviceOptions() if options is None else options
        #: The error of GetDevicePluginOptions, if any.
        self.options_error: GRPCError | None = None
        #: The error with which each new stream ends at once, if any.
        self.stream_error: GRPCError | None = None
        #: If False, streams are open and send nothing, until :meth:`show`.
        self.lists = True
        #: Seconds before the answer to GetDevicePluginOptions, and before the first list of a stream.
        self.options_delay = 0.0
        self.list_delay = 0.0
        #: The time of each call of ListAndWatch.
        self.streamed: list[float] = []
        #: The most streams that were open at once.
        self.most_streams = 0
        #: How often GetDevicePluginOptions was called.
        self.asked = 0
        #: The calls that allocated devices, and the ids in each.
        self.allocations: list[tuple[AllocationCall, tuple[str, ...]]] = []
        #: The errors with which these calls end, the calls that are never answered, and seconds before an answer.
        self.errors: dict[AllocationCall, GRPCError] = {}
        self.hangs: set[AllocationCall] = set()
        self.delays: dict[AllocationCall, float] = {}
        #: The answer to Allocate in place of that of :meth:`allocate`, if any.
        self.answer: api.AllocateResponse | None = None
        self._message = message_of(devices)
        self._open: set[Feed[api.ListAndWatchResponse]] = set()

    def show(self, *devices: Device) -> None:
        """List these devices from now on; each open stream gets the list."""
        self.lists = True
        self.send(message_of(devices))

    def send(self, message: api.ListAndWatchResponse) -> None:
        """Send this message from now on."""
        self._message = message
        for stream in self._open:
            stream.put(message)

    def end(self, error: GRPCError | None = None) -> None:
        """End the open streams, in order or with an ``error``; new streams are served."""
        for stream in self._open:
            stream.finish(GRPCError(Status.OK) if error is None else error)

    # --- the service --------------------------------------------------------------------------------------------------

    async def GetDevicePluginOptions(self, stream: Stream[api.Empty, api.DevicePluginOptions]) -> None:  # noqa: N802
        """Answer with the options, or misbehave."""
        await stream.recv_message()
        self.asked += 1
        await trio.sleep(self.options_delay)
        if self.options_error is not None:
            raise self.options_error
        await stream.send_message(options_message(self.options))

    async def ListAndWatch(self, stream: Stream[api.Empty, api.ListAndWatchResponse]) -> None:  # noqa: N802
        """Send the list, and each list that is shown later."""
        await stream.recv_message()
        self.streamed.append(trio.current_time())
        if self.stream_error is not None:
            raise self.stream_error
        feed = Feed[api.ListAndWatchResponse]()
        self._open.add(feed)
        self.most_streams = max(self.most_streams, self.streams)
        try:
            await trio.sleep(self.list_delay)
            # The list that is sent now is as new as those that were queued meanwhile.
            feed.skip()
            if self.lists:
                await stream.send_message(self._message)
            while not isinstance(said := await feed.next(), GRPCError):
                await stream.send_message(said)
            _end(said)
        finally:
            self._open.discard(feed)

    @property
    def streams(self) -> int:
        """How many streams are open now."""
        return len(self._open)

    async def GetPreferredAllocation(  # noqa: N802
        self, stream: Stream[api.PreferredAllocationRequest, api.PreferredAllocationResponse]
    ) -> None:
        """Answer with the result of :meth:`prefer`, or misbehave."""
        request = await stream.recv_message() or api.PreferredAllocationRequest()
        available = [name for one in request.container_requests for name in one.available_deviceIDs]
        await stream.send_message(
            await self._react(AllocationCall.PREFERRED, stream.peer, available, lambda: self._preferred(request))
        )

    def _preferred(self, request: api.PreferredAllocationRequest) -> api.PreferredAllocationResponse:
        return api.PreferredAllocationResponse(
            container_responses=[
                api.ContainerPreferredAllocationResponse(deviceIDs=self.prefer(one))
                for one in request.container_requests
            ]
        )

    def prefer(self, request: api.ContainerPreferredAllocationRequest) -> list[str]:
        """Return the devices to allocate: those that must be included, and then the first listed ones."""
        available = set(request.available_deviceIDs)
        in_order = [device.ID for device in self._message.devices if device.ID in available]
        return list(dict.fromkeys([*request.must_include_deviceIDs, *in_order]))[: request.allocation_size]

    async def Allocate(self, stream: Stream[api.AllocateRequest, api.AllocateResponse]) -> None:  # noqa: N802
        """Answer with the results of :meth:`allocate` for each container, or misbehave."""
        request = await stream.recv_message() or api.AllocateRequest()
        ids = [name for one in request.container_requests for name in one.devices_ids]
        await stream.send_message(
            await self._react(AllocationCall.ALLOCATE, stream.peer, ids, lambda: self._allocated(request))
        )

    def _allocated(self, request: api.AllocateRequest) -> api.AllocateResponse:
        if self.answer is not None:
            return self.answer
        answers = [self.allocate(list(one.devices_ids)) for one in request.container_requests]
        return api.AllocateResponse(container_responses=answers)

    def allocate(self, ids: list[str]) -> api.ContainerAllocateResponse:
        """Return what a container needs to use the devices ``ids``: here their ids, in ``DEVICES``."""
        return api.ContainerAllocateResponse(envs={"DEVICES": ",".join(ids)})

    async def PreStartContainer(  # noqa: N802
        self, stream: Stream[api.PreStartContainerRequest, api.PreStartContainerResponse]
    ) -> None:
        """Agree, or misbehave."""
        request = await stream.recv_message() or api.PreStartContainerRequest()
        await stream.send_message(
            await self._react(AllocationCall.PRE_START, stream.peer, request.devices_ids, api.PreStartContainerResponse)
        )

    async def _react(self, call: AllocationCall, peer: object, ids: Iterable[str], answer: Callable[[], T]) -> T:
        """Return the answer to ``call`` for the devices ``ids``, unless it must be refused or hang."""
        named = tuple(ids)
        self.allocations.append((call, named))
        try:
            if (error := self.errors.get(call)) is not None:
                raise error
            made = answer()
        except GRPCError:
            self.note(call, peer, named, Reaction.REFUSED)
            raise
        if call in self.hangs:
            self.note(call, peer, named, Reaction.HUNG)
            await trio.sleep_forever()
        self.note(call, peer, named)
        await trio.sleep(self.delays.get(call, 0.0))
        return made

    def note(self, method: str, peer: object, ids: tuple[str, ...] = (), how: Reaction = Reaction.ANSWERED) -> None:
        """Note a call, and the reaction to it; subclasses can override this."""


def _end(error: GRPCError) -> None:
    if error.status is not Status.OK:
        raise error


def options_message(options: DeviceOptions) -> api.DevicePluginOptions:
    """Return the message for ``options``."""
    return api.DevicePluginOptions(
        pre_start_required=options.pre_start_required,
        get_preferred_allocation_available=options.get_preferred_allocation_available,
    )


def message_of(devices: Iterable[Device]) -> api.ListAndWatchResponse:
    """Return the message with ``devices``."""
    return api.ListAndWatchResponse(devices=[_message_of(device) for device in devices])


def _message_of(device: Device) -> api.Device:
    nodes = [api.NUMANode(ID=node) for node in device.numa]
    topology = api.TopologyInfo(nodes=nodes) if nodes else None
    return api.Device(ID=device.id, health=device.health, topology=topology)
