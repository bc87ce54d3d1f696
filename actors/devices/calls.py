"""The calls to one device plugin that leases need, one at a time: GetPreferredAllocation, Allocate and
PreStartContainer.

A refusal and a loss are told apart, because no call takes an allocation back. A plugin that has answered, with whatever
answer, holds nothing for a lease that never begins. A plugin that has not answered may still prepare the devices, so
nobody can get them: its answer was late, its connection was lost, or the follow ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Collection, Iterable
from contextlib import suppress
from itertools import islice
from typing import TypeVar, assert_never

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...protocol.errors import NoConnectionError
from ...protocol.leases.answers import MAX_ENTRIES, MAX_MESSAGE, AnswerError, check_count, checked
from ...protocol.leases.messages import (
    AllocateAsked,
    Allocated,
    AllocationLost,
    AllocationRefused,
    CallMessage,
    CallWithdrawn,
    DeviceCall,
    PluginCall,
    PreferenceAsked,
    Preferred,
)
from ...protocol.leases.values import Answer, Mount, Node
from ...protocol.plugins.info import Plugin
from ...protocol.proto import deviceplugin_v1beta1_pb2 as api
from ...protocol.proto.deviceplugin_v1beta1_grpc import DevicePluginStub
from ...protocol.text import cut, escaped
from ...protocol.wire.errors import WireError, WireProblem
from ...protocol.wire.outcomes import status_text
from ..grpc.client.channel import Channel
from ..grpc.client.stream import at_most
from ..handlers.link import Link

#: Deadlines of the calls in seconds.
PREFERENCE_TIMEOUT = 5.0
ALLOCATE_TIMEOUT = 30.0
PRE_START_TIMEOUT = 30.0
#: How many calls can wait.
MAX_WAITING = 1024
NOT_FOLLOWED = "the plugin is not followed at present, so it is not asked: try again"
ENDED = "plugind has stopped to follow the plugin"
WITHDRAWN = "nobody wants the lease any more"
BUSY = f"{MAX_WAITING} calls wait for the plugin already: try again later"

#: Characters of a plugin's error that are passed on.
_MAX_WORDS = 1024
#: Bytes of unknown fields that an answer can have.
_MAX_UNKNOWN = 4096
#: Endings found by plugind after which the plugin does not work on the call: it has not taken the call, or its answer
#: is too long.
_SETTLED = (WireProblem.GOING_AWAY, WireProblem.MESSAGE_BYTES)

T = TypeVar("T")


class RefusedError(Exception):
    """The plugin holds nothing for the lease; the text is the reason."""


class LostError(Exception):
    """It is not known what the plugin holds for the lease; the text is the reason."""


class PluginCalls:
    """The address of the calls of one plugin, and the task that makes them while the plugin is followed.

    Each call is answered once, even if the follow crashes.
    """

    def __init__(self, plugin: Plugin) -> None:
        self._key = plugin.socket, plugin.generation
        self._waiting: deque[PluginCall] = deque()
        self._lot = trio.lowlevel.ParkingLot()
        self._runs = False

    def send_nowait(self, call: DeviceCall, /) -> None:
        """Make ``call`` after the earlier ones. A call that cannot be made is answered at once."""
        if isinstance(call, CallWithdrawn):
            self._withdraw(call.lease)
        elif not self._runs:
            call.reply.send_nowait(_unsent(call, NOT_FOLLOWED))
        elif len(self._waiting) >= MAX_WAITING:
            call.reply.send_nowait(_unsent(call, BUSY))
        else:
            self._waiting.append(call)
            self._lot.unpark()

    def _withdraw(self, lease: str) -> None:
        withdrawn = [call for call in self._waiting if call.lease == lease]
        for call in withdrawn:
            self._waiting.remove(call)
            call.reply.send_nowait(_unsent(call, WITHDRAWN))

    async def run(self, link: Link) -> None:
        """Make the calls on the channel of ``link`` until cancelled."""
        self._runs = True
        try:
            while True:
                while not self._waiting:
                    await self._lot.park()
                await self._make(self._waiting.popleft(), link)
        finally:
            self._runs = False
            while self._waiting:
                call = self._waiting.popleft()
                call.reply.send_nowait(_unsent(call, ENDED))

    async def _make(self, call: PluginCall, link: Link) -> None:
        match call:
            case PreferenceAsked():
                await self._prefer(call, link)
            case AllocateAsked():
                await self._allocate(call, link)
            case _:
                assert_never(call)

    async def _prefer(self, call: PreferenceAsked, link: Link) -> None:
        answer = Preferred(call.lease, call.resource, error=ENDED)
        try:
            devices = await preferred(_stub(link), call.available, call.must_include, call.size)
            answer = Preferred(call.lease, call.resource, devices)
        except (RefusedError, LostError) as error:
            text = f"device plugin GetPreferredAllocation rpc failed with err: {error}"
            answer = Preferred(call.lease, call.resource, error=text)
        finally:
            call.reply.send_nowait(answer)

    async def _allocate(self, call: AllocateAsked, link: Link) -> None:
        watch = _Stopwatch()
        channel = _channel_of(link)
        # The answer if the call is cancelled or crashes.
        answer: Allocated | AllocationRefused | AllocationLost = self._lost(call, ENDED)
        try:
            stub = _stub(link)
            with watch:
                said = await allocated(stub, call.devices)
            if call.pre_start:
                await started(stub, call.devices)
            uid = None if channel is None or channel.peer is None else channel.peer.uid
            answer = Allocated(call.lease, call.resource, said, uid=uid)
        except RefusedError as error:
            answer = AllocationRefused(call.lease, call.resource, str(error))
        except LostError as error:
            answer = self._lost(call, str(error))
        finally:
            if isinstance(answer, AllocationLost) and channel is not None and channel.peer is not None:
                # A process in another pid namespace has the pid 0.
                is_cut = channel.connection.failure is not None
                answer = attrs.evolve(answer, pid=channel.peer.pid or None, is_cut=is_cut)
            call.reply.send_nowait(attrs.evolve(answer, seconds=watch.seconds))

    def _lost(self, call: AllocateAsked, reason: str) -> AllocationLost:
        return AllocationLost(call.lease, call.resource, self._key, reason)


def _channel_of(link: Link) -> Channel | None:
    with suppress(NoConnectionError):
        return link.channel
    return None


def _unsent(call: PluginCall, reason: str) -> CallMessage:
    match call:
        case PreferenceAsked():
            return Preferred(call.lease, call.resource, error=reason)
        case AllocateAsked():
            return AllocationRefused(call.lease, call.resource, reason)
        case _:
            assert_never(call)


# --- the calls --------------------------------------------------------------------------------------------------------


async def preferred(
    stub: DevicePluginStub, available: Collection[str], must_include: Collection[str], size: int
) -> tuple[str, ...]:
    """Call GetPreferredAllocation, and return the devices in the answer, whatever they are.

    Raises:
      RefusedError: if the call fails, or the answer is not that for one container.
      LostError: if no answer comes.
    """
    wanted = api.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
    )
    request = api.PreferredAllocationRequest(container_requests=[wanted])
    # The answer lists devices of the request, in the same form.
    most = request.ByteSize() + _MAX_UNKNOWN
    stub.GetPreferredAllocation.reply_type = at_most(most, api.PreferredAllocationResponse)
    asked = stub.GetPreferredAllocation(request, timeout=PREFERENCE_TIMEOUT)
    said = await _answered(asked, PREFERENCE_TIMEOUT)
    if len(said.container_responses) != 1:
        raise RefusedError(f"{len(said.container_responses)} containers return in its answer, and one was asked for")
    return tuple(said.container_responses[0].deviceIDs)


class _Stopwatch:
    seconds: float | None = None

    def __enter__(self) -> None:
        self._began = trio.current_time()

    def __exit__(self, *_: object) -> None:
        self.seconds = trio.current_time() - self._began


async def allocated(stub: DevicePluginStub, devices: Collection[str]) -> Answer:
    """Call Allocate for one container, and return the checked answer.

    Raises:
      RefusedError: if the call fails, or the answer cannot be used; then an :exc:`AnswerError` is its cause.
      LostError: if no answer comes.
    """
    wanted = api.ContainerAllocateRequest(devices_ids=devices)
    stub.Allocate.reply_type = at_most(MAX_MESSAGE, api.AllocateResponse)
    asked = stub.Allocate(api.AllocateRequest(container_requests=[wanted]), timeout=ALLOCATE_TIMEOUT)
    said = await _answered(asked, ALLOCATE_TIMEOUT)
    try:
        check_count(len(said.container_responses))
        return checked(_plain(said.container_responses[0]))
    except AnswerError as error:
        raise RefusedError(f"the answer of the device plugin to Allocate cannot be used: {error}") from error


async def started(stub: DevicePluginStub, devices: Collection[str]) -> None:
    """Call PreStartContainer, in which a plugin can reset the devices; nobody gets them until it has answered.

    Raises:
      RefusedError: if the call fails.
      LostError: if no answer comes.
    """
    asked = stub.PreStartContainer(api.PreStartContainerRequest(devices_ids=devices), timeout=PRE_START_TIMEOUT)
    try:
        await _answered(asked, PRE_START_TIMEOUT)
    except (RefusedError, LostError) as error:
        raise type(error)(f"device plugin PreStartContainer rpc failed with err: {error}") from error


def _stub(link: Link) -> DevicePluginStub:
    try:
        return link.channel.stub(DevicePluginStub)
    except NoConnectionError as error:
        raise RefusedError(str(error)) from error


async def _answered(call: Awaitable[T], timeout: float) -> T:
    """Return the answer to a call with a deadline of ``timeout`` seconds; raise a refusal or a loss."""
    try:
        return await call
    except trio.ClosedResourceError as error:
        raise LostError("the connection to the endpoint was closed") from error
    except GRPCError as error:
        cause = error.__cause__
        words = cut(escaped(status_text(error)), _MAX_WORDS)
        if isinstance(cause, WireError) and cause.problem not in _SETTLED:
            raise LostError(words) from error
        if error.status is Status.DEADLINE_EXCEEDED:
            raise LostError(f"no answer within {timeout:g} s") from error
        raise RefusedError(words) from error


# --- the answer -------------------------------------------------------------------------------------------------------


def _plain(said: api.ContainerAllocateResponse) -> Answer:
    """Convert an answer. Lists that are too long are cut just above the limit, so that the check finds them."""
    return Answer(
        dict(_some(said.envs.items())),
        tuple(Mount(mount.host_path, mount.container_path, mount.read_only) for mount in _some(said.mounts)),
        tuple(Node(device.host_path, device.container_path, device.permissions) for device in _some(said.devices)),
        dict(_some(said.annotations.items())),
        tuple(device.name for device in _some(said.cdi_devices)),
    )


def _some(items: Iterable[T]) -> Iterable[T]:
    return islice(items, MAX_ENTRIES + 1)
