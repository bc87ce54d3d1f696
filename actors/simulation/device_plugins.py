"""The service of device plugins that a script controls: options, lists of devices, and faults of both.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...protocol.devices import Device, DeviceOptions
from ...protocol.proto import deviceplugin_v1beta1_pb2 as api
from ...protocol.proto.deviceplugin_v1beta1_grpc import DevicePluginBase

if TYPE_CHECKING:
    from grpclib.server import Stream


#: How many lists wait for a reader that is slow. Each list is the whole set, so the oldest of more are dropped.
MOST_WAITING = 64


@attrs.define(eq=False)
class _Feed:
    """What one stream is to send: lists, and then its end."""

    _lists: deque[api.ListAndWatchResponse] = attrs.field(factory=lambda: deque(maxlen=MOST_WAITING))
    _end: GRPCError | None = None
    _news: trio.Event = attrs.field(factory=trio.Event)

    def put(self, message: api.ListAndWatchResponse) -> None:
        """Let the stream send a list, unless it is to end."""
        if self._end is None:
            self._lists.append(message)
            self._news.set()

    def finish(self, error: GRPCError) -> None:
        """Let the stream end once it has sent what waits."""
        self._end = self._end or error
        self._news.set()

    async def next(self) -> api.ListAndWatchResponse | GRPCError:
        """Return what is to be sent next, once there is something; or how the stream ends."""
        while not self._lists and self._end is None:
            self._news = trio.Event()
            await self._news.wait()
        if self._lists:
            return self._lists.popleft()
        assert self._end is not None
        return self._end


class FakeDevices(DevicePluginBase):
    """The service ``v1beta1.DevicePlugin`` with these ``devices``, on connections in memory or on a real socket.

    All public attributes may be changed while it serves. No method that a script calls waits.
    """

    def __init__(self, devices: Iterable[Device] = (), options: DeviceOptions | None = None) -> None:
        #: The answer to GetDevicePluginOptions.
        self.options = DeviceOptions() if options is None else options
        #: What GetDevicePluginOptions raises, if anything.
        self.options_error: GRPCError | None = None
        #: What each new stream ends with at once, if anything.
        self.stream_error: GRPCError | None = None
        #: False: streams are open and send nothing, until :meth:`show`.
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
        self._message = message_of(devices)
        self._open: set[_Feed] = set()

    def show(self, *devices: Device) -> None:
        """List these devices from now on; each open stream is sent the list."""
        self.lists = True
        self.send(message_of(devices))

    def send(self, message: api.ListAndWatchResponse) -> None:
        """Send this very message from now on."""
        self._message = message
        for stream in self._open:
            stream.put(message)

    def end(self, error: GRPCError | None = None) -> None:
        """End the open streams, in order unless there is an ``error``; new ones are served."""
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
        """Send the list, and each other one that is shown later."""
        await stream.recv_message()
        self.streamed.append(trio.current_time())
        if self.stream_error is not None:
            raise self.stream_error
        feed = _Feed()
        self._open.add(feed)
        self.most_streams = max(self.most_streams, self.streams)
        try:
            await trio.sleep(self.list_delay)
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
        """Refuse."""
        await stream.recv_message()
        raise GRPCError(Status.UNIMPLEMENTED)

    async def Allocate(self, stream: Stream[api.AllocateRequest, api.AllocateResponse]) -> None:  # noqa: N802
        """Refuse."""
        await stream.recv_message()
        raise GRPCError(Status.UNIMPLEMENTED)

    async def PreStartContainer(  # noqa: N802
        self, stream: Stream[api.PreStartContainerRequest, api.PreStartContainerResponse]
    ) -> None:
        """Refuse."""
        await stream.recv_message()
        raise GRPCError(Status.UNIMPLEMENTED)


def _end(error: GRPCError) -> None:
    if error.status is not Status.OK:
        raise error


def options_message(options: DeviceOptions) -> api.DevicePluginOptions:
    """Return the message that says ``options``."""
    return api.DevicePluginOptions(
        pre_start_required=options.pre_start_required,
        get_preferred_allocation_available=options.get_preferred_allocation_available,
    )


def message_of(devices: Iterable[Device]) -> api.ListAndWatchResponse:
    """Return the message that lists ``devices``."""
    return api.ListAndWatchResponse(devices=[_message_of(device) for device in devices])


def _message_of(device: Device) -> api.Device:
    nodes = [api.NUMANode(ID=node) for node in device.numa]
    topology = api.TopologyInfo(nodes=nodes) if nodes else None
    return api.Device(ID=device.id, health=device.health, topology=topology)
