"""Follows the health that an instance of a DRA driver reports for its devices, by the rules of Kubernetes 1.37.

The stream is opened while the instance is connected, if the driver announces a service for it (``DRAConfig.health``). A
service that the driver does not implement is not tried again. A stream that ends otherwise is opened again after a few
seconds. ``plugind.protocol.handlers.dra_health`` has the rules for the devices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

import trio
from google.protobuf.message import DecodeError
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from ....protocol.handlers.dra_health import (
    MAX_DEVICES,
    DeviceHealthError,
    DeviceHealths,
    DeviceReport,
    DRADeviceHealth,
)
from ....protocol.proto import dra_health_v1_pb2 as api
from ....protocol.wire.outcomes import status_text
from ....protocol.wire.protobuf_fields import InvalidMessageError, check_count
from ...grpc.client.channel import Channel
from ..paced import take_newest

#: Seconds until a stream that has ended is opened again.
AGAIN_AFTER = 5.0
NOT_IMPLEMENTED = "not implemented"

_STATUSES = {api.HEALTHY: DRADeviceHealth.HEALTHY, api.UNHEALTHY: DRADeviceHealth.UNHEALTHY}


class HealthFollower:
    """Follows the health of the devices of one instance, as long as the instance is registered."""

    def __init__(self, services: Iterable[str], note: Callable[[], None]) -> None:
        """Use the first of ``services`` that the driver implements; call ``note`` after each change."""
        self.devices = DeviceHealths()
        self._services = deque(services)
        self._note = note
        self._expiry = trio.Event()
        #: The service that reports the health, or why none does.
        self.state = ""

    @property
    def is_wanted(self) -> bool:
        """Whether there is a stream to open."""
        return bool(self._services)

    async def run(self, channel: Channel) -> None:
        """Follow the health of the devices on one connection, until the driver implements none of the services."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._expire)
                await self._follow_streams(channel)
                # The last reports stay valid until they expire.
                await trio.sleep_until(self.devices.last_expiry)
                self._expire_due()
                nursery.cancel_scope.cancel()
        finally:
            self.lose()

    def lose(self) -> None:
        """Note that there are no reports about the devices from now on."""
        self.devices.lose(trio.current_time())
        if self._services:
            self.state = ""

    async def _follow_streams(self, channel: Channel) -> None:
        """Follow one stream after the other. The two versions of the service differ only in their names."""
        while self._services:
            service = self._services[0]
            try:
                await self._follow_stream(channel, service)
            except GRPCError as error:
                if error.status is Status.UNIMPLEMENTED:
                    self._services.popleft()
                    self._say(NOT_IMPLEMENTED)
                    continue
                if channel.connection.failure is not None:
                    return
                self._say(f"{service} has ended: {status_text(error)}")
            except (DeviceHealthError, DecodeError, InvalidMessageError) as error:
                self._say(f"{service} is refused: {error}")
            except trio.ClosedResourceError:
                return
            else:
                self._say(f"{service} has ended")
            await trio.sleep(AGAIN_AFTER)

    async def _follow_stream(self, channel: Channel, service: str) -> None:
        path = f"/{service}/NodeWatchResources"
        request, reply = api.NodeWatchResourcesRequest, api.NodeWatchResourcesResponse
        async with channel.request(path, Cardinality.UNARY_STREAM, request, reply) as stream:
            await stream.send_message(request(), end=True)
            await take_newest(stream, lambda message: self._take(service, message))

    def _take(self, service: str, message: bytes) -> Iterator[None]:
        check_count(message, MAX_DEVICES)
        yield
        said = api.NodeWatchResourcesResponse.FromString(message)
        self.devices.take(_reports(said), trio.current_time())
        self._expiry.set()
        self._say(service)

    def _say(self, state: str) -> None:
        self.state = state
        self._note()

    async def _expire(self) -> NoReturn:
        while True:
            self._expiry = trio.Event()
            with trio.move_on_at(self.devices.next_expiry):
                await self._expiry.wait()
            self._expire_due()

    def _expire_due(self) -> None:
        if self.devices.next_expiry <= trio.current_time():
            self.devices.expire(trio.current_time())
            self._note()


def _reports(said: api.NodeWatchResourcesResponse) -> Iterator[DeviceReport]:
    for one in said.devices:
        yield DeviceReport(
            one.device.pool_name,
            one.device.device_name,
            _STATUSES.get(one.health, DRADeviceHealth.UNKNOWN),
            one.message,
            one.health_check_timeout_seconds,
        )
