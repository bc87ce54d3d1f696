"""A fake DRA driver that a script controls: claims, the health of devices, and faults of its calls."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import trio
from google.protobuf.message import Message
from grpclib.const import Handler as Method
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...protocol.handlers.dra_claims import DRAClaim, PreparedDevice
from ...protocol.handlers.dra_health import DeviceReport, DRADeviceHealth
from ...protocol.proto import dra_health_v1_grpc as health_v1_grpc
from ...protocol.proto import dra_health_v1_pb2 as health_v1
from ...protocol.proto import dra_health_v1alpha1_grpc as health_v1alpha1_grpc
from ...protocol.proto import dra_health_v1alpha1_pb2 as health_v1alpha1
from ...protocol.proto import dra_v1_grpc as v1_grpc
from ...protocol.proto import dra_v1_pb2 as v1
from ...protocol.proto import dra_v1beta1_grpc as v1beta1_grpc
from ...protocol.proto import dra_v1beta1_pb2 as v1beta1
from ...protocol.proto.health_v1_grpc import HealthBase
from ...protocol.proto.health_v1_pb2 import HealthCheckRequest, HealthCheckResponse
from ..grpc.server.serve import Service
from .feeds import Feed
from .reactions import Reaction

if TYPE_CHECKING:
    from grpclib.server import Stream

#: The request and the answer of a call.
Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

#: The usual services of a driver, none of which reports health.
USUAL_SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")


class DRACall(enum.StrEnum):
    """The calls of a node to a DRA driver."""

    PREPARE = "NodePrepareResources"
    UNPREPARE = "NodeUnprepareResources"
    #: A stream of the health of devices.
    WATCH = "NodeWatchResources"
    #: The status of the process, by gRPC's health service.
    CHECK = "Check"


class FakeDRADriver:
    """The services of a DRA driver, in memory or on a real socket.

    All public attributes can be changed while it serves. No method for scripts waits. If several faults of one call are
    set, it hangs rather than fails.
    """

    def __init__(self, services: Collection[str] = USUAL_SERVICES) -> None:
        #: The services that it serves, by full names: ``v1.DRAPlugin``, ``v1beta1.DRAPlugin``,
        #: ``v1.DRAResourceHealth``, ``v1alpha1.DRAResourceHealth`` and ``grpc.health.v1.Health``. Its versions are the
        #: services that it announces.
        self.services = set(services)
        #: The services that it does not implement: their calls end with UNIMPLEMENTED.
        self.refused_services: set[str] = set()
        #: The prepared claims, by uid.
        self.prepared: dict[str, DRAClaim] = {}
        #: The errors of claims, by uid.
        self.claim_errors: dict[str, str] = {}
        #: The uids of claims that its answers leave out, and of claims that they add.
        self.skips: set[str] = set()
        self.adds: set[str] = set()
        #: The answer of gRPC's health service.
        self.serving = True
        #: The errors with which calls end, the calls that are never answered, and seconds before an answer or an error.
        self.errors: dict[DRACall, GRPCError] = {}
        self.hangs: set[DRACall] = set()
        self.delays: dict[DRACall, float] = {}
        #: The calls that came, in order, each with the time of Trio's clock; and the service of each.
        self.calls: list[tuple[float, DRACall]] = []
        self.services_called: list[str] = []
        #: The most health streams that were open at once.
        self.most_streams = 0
        self._devices: tuple[DeviceReport, ...] | None = None
        self._open: set[Feed[tuple[DeviceReport, ...]]] = set()

    def called(self, call: DRACall) -> int:
        """Return how often ``call`` came."""
        return sum(one is call for _, one in self.calls)

    def devices_of(self, claim: DRAClaim) -> list[PreparedDevice]:
        """Return the devices that are prepared for a claim; subclasses can override this."""
        return [PreparedDevice(("gpu",), "pool-0", "gpu-0", (f"example.com/gpu={claim.name}",))]

    # --- the health of devices ----------------------------------------------------------------------------------------

    def show(self, *devices: DeviceReport) -> None:
        """Report these devices from now on; each open stream gets the list."""
        self._devices = devices
        for stream in self._open:
            stream.put(devices)

    def end(self, error: GRPCError | None = None) -> None:
        """End the open streams, in order or with an ``error``; new streams are served."""
        for stream in self._open:
            stream.finish(GRPCError(Status.OK) if error is None else error)

    @property
    def streams(self) -> int:
        """How many streams are open now."""
        return len(self._open)

    # --- the services -------------------------------------------------------------------------------------------------

    def __mapping__(self) -> dict[str, Method]:
        """The methods of the services that it serves now."""
        made: dict[str, Service] = {
            "v1.DRAPlugin": _PluginV1(self),
            "v1beta1.DRAPlugin": _PluginV1Beta1(self),
            "v1.DRAResourceHealth": _HealthV1(self),
            "v1alpha1.DRAResourceHealth": _HealthV1Alpha1(self),
            "grpc.health.v1.Health": _Serving(self),
        }
        methods: dict[str, Method] = {}
        for name in self.services:
            methods |= made[name].__mapping__()
        return methods

    async def answer(self, call: DRACall, service: str, stream: Stream[Q, A], make: Callable[[Q], A]) -> None:
        """Answer a call with the result of ``make`` for its request, or misbehave."""
        request = await stream.recv_message()
        await self._begin(call, service, stream.peer)
        if request is not None:
            await stream.send_message(make(request))

    async def watch(self, service: str, stream: Stream[Q, A], reply: type[A]) -> None:
        """Send each list of devices that is shown, until the stream must end, or misbehave."""
        await stream.recv_message()
        await self._begin(DRACall.WATCH, service, stream.peer)
        feed = Feed[tuple[DeviceReport, ...]]()
        self._open.add(feed)
        self.most_streams = max(self.most_streams, self.streams)
        try:
            if self._devices is not None:
                feed.put(self._devices)
            while not isinstance(said := await feed.next(), GRPCError):
                await stream.send_message(_converted(reply, self.health_message(said)))
                self.sent(said)
            if said.status is not Status.OK:
                raise said
        finally:
            self._open.discard(feed)

    async def _begin(self, call: DRACall, service: str, peer: object) -> None:
        self.calls.append((trio.current_time(), call))
        self.services_called.append(service)
        hangs, error = call in self.hangs, self.errors.get(call)
        if service in self.refused_services:
            error = GRPCError(Status.UNIMPLEMENTED, f"unknown service {service}")
        refused_or_not = Reaction.ANSWERED if error is None else Reaction.REFUSED
        self.note(call, peer, Reaction.HUNG if hangs else refused_or_not)
        if hangs:
            # The client's deadline, or the end of the connection, ends the call's scope.
            await trio.sleep_forever()
        await trio.sleep(self.delays.get(call, 0.0))
        if error is not None:
            raise error

    def health_message(self, reports: Iterable[DeviceReport]) -> health_v1.NodeWatchResourcesResponse:
        """Return the message with these reports; subclasses can override this."""
        return health_v1.NodeWatchResourcesResponse(devices=map(_report_message, reports))

    def sent(self, reports: Sequence[DeviceReport]) -> None:
        """Note a list that was sent on one of the streams; subclasses can override this."""

    def prepare(self, request: v1.NodePrepareResourcesRequest) -> v1.NodePrepareResourcesResponse:
        """Return the answer to NodePrepareResources."""
        answer = v1.NodePrepareResourcesResponse()
        for claim in self._answered(request.claims):
            error = self.claim_errors.get(claim.uid, "")
            if not error:
                self.prepared[claim.uid] = claim
            devices = [] if error else map(_device_message, self.devices_of(claim))
            answer.claims[claim.uid].CopyFrom(v1.NodePrepareResourceResponse(devices=devices, error=error))
        return answer

    def unprepare(self, request: v1.NodeUnprepareResourcesRequest) -> v1.NodeUnprepareResourcesResponse:
        """Return the answer to NodeUnprepareResources."""
        answer = v1.NodeUnprepareResourcesResponse()
        for claim in self._answered(request.claims):
            error = self.claim_errors.get(claim.uid, "")
            if not error:
                self.prepared.pop(claim.uid, None)
            answer.claims[claim.uid].error = error
        return answer

    def _answered(self, claims: Iterable[v1.Claim]) -> Iterator[DRAClaim]:
        """Yield the claims that the answer must have."""
        for claim in claims:
            if claim.uid not in self.skips:
                yield DRAClaim(claim.namespace, claim.uid, claim.name)
        for uid in sorted(self.adds):
            yield DRAClaim("", uid, "")

    def serving_status(self, _: HealthCheckRequest) -> HealthCheckResponse:
        """Return the answer of gRPC's health service."""
        serves = HealthCheckResponse.SERVING if self.serving else HealthCheckResponse.NOT_SERVING
        return HealthCheckResponse(status=serves)

    def note(self, call: DRACall, peer: object, how: Reaction) -> None:
        """Note a call, and the reaction to it; subclasses can override this."""


# --- the services, as they are generated ------------------------------------------------------------------------------


class _PluginV1(v1_grpc.DRAPluginBase):
    _NAME = "v1.DRAPlugin"

    def __init__(self, driver: FakeDRADriver) -> None:
        self._driver = driver

    async def NodePrepareResources(  # noqa: N802 - the name in the .proto, as below
        self, stream: Stream[v1.NodePrepareResourcesRequest, v1.NodePrepareResourcesResponse]
    ) -> None:
        await self._driver.answer(DRACall.PREPARE, self._NAME, stream, self._driver.prepare)

    async def NodeUnprepareResources(  # noqa: N802
        self, stream: Stream[v1.NodeUnprepareResourcesRequest, v1.NodeUnprepareResourcesResponse]
    ) -> None:
        await self._driver.answer(DRACall.UNPREPARE, self._NAME, stream, self._driver.unprepare)


class _PluginV1Beta1(v1beta1_grpc.DRAPluginBase):
    _NAME = "v1beta1.DRAPlugin"

    def __init__(self, driver: FakeDRADriver) -> None:
        self._driver = driver

    async def NodePrepareResources(  # noqa: N802
        self, stream: Stream[v1beta1.NodePrepareResourcesRequest, v1beta1.NodePrepareResourcesResponse]
    ) -> None:
        await self._driver.answer(DRACall.PREPARE, self._NAME, stream, self._prepare)

    def _prepare(self, request: v1beta1.NodePrepareResourcesRequest) -> v1beta1.NodePrepareResourcesResponse:
        said = self._driver.prepare(_converted(v1.NodePrepareResourcesRequest, request))
        return _converted(v1beta1.NodePrepareResourcesResponse, said)

    async def NodeUnprepareResources(  # noqa: N802
        self, stream: Stream[v1beta1.NodeUnprepareResourcesRequest, v1beta1.NodeUnprepareResourcesResponse]
    ) -> None:
        await self._driver.answer(DRACall.UNPREPARE, self._NAME, stream, self._unprepare)

    def _unprepare(self, request: v1beta1.NodeUnprepareResourcesRequest) -> v1beta1.NodeUnprepareResourcesResponse:
        said = self._driver.unprepare(_converted(v1.NodeUnprepareResourcesRequest, request))
        return _converted(v1beta1.NodeUnprepareResourcesResponse, said)


class _HealthV1(health_v1_grpc.DRAResourceHealthBase):
    def __init__(self, driver: FakeDRADriver) -> None:
        self._driver = driver

    async def NodeWatchResources(  # noqa: N802
        self, stream: Stream[health_v1.NodeWatchResourcesRequest, health_v1.NodeWatchResourcesResponse]
    ) -> None:
        await self._driver.watch("v1.DRAResourceHealth", stream, health_v1.NodeWatchResourcesResponse)


class _HealthV1Alpha1(health_v1alpha1_grpc.DRAResourceHealthBase):
    def __init__(self, driver: FakeDRADriver) -> None:
        self._driver = driver

    async def NodeWatchResources(  # noqa: N802
        self, stream: Stream[health_v1alpha1.NodeWatchResourcesRequest, health_v1alpha1.NodeWatchResourcesResponse]
    ) -> None:
        await self._driver.watch("v1alpha1.DRAResourceHealth", stream, health_v1alpha1.NodeWatchResourcesResponse)


class _Serving(HealthBase):
    def __init__(self, driver: FakeDRADriver) -> None:
        self._driver = driver

    async def Check(self, stream: Stream[HealthCheckRequest, HealthCheckResponse]) -> None:  # noqa: N802
        await self._driver.answer(DRACall.CHECK, "grpc.health.v1.Health", stream, self._driver.serving_status)

    async def Watch(self, stream: Stream[HealthCheckRequest, HealthCheckResponse]) -> None:  # noqa: N802
        await stream.recv_message()
        raise GRPCError(Status.UNIMPLEMENTED, "this fake answers Check only")


# --- messages ---------------------------------------------------------------------------------------------------------


def _converted(kind: type[A], message: Message) -> A:
    """Convert a message to another version of its API, which has the same field numbers."""
    return kind.FromString(message.SerializeToString())


def _device_message(device: PreparedDevice) -> v1.Device:
    return v1.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_devices,
        share_id=device.share_id,
    )


_STATUSES = {
    DRADeviceHealth.HEALTHY: health_v1.HEALTHY,
    DRADeviceHealth.UNHEALTHY: health_v1.UNHEALTHY,
    DRADeviceHealth.UNKNOWN: health_v1.UNKNOWN,
}


def _report_message(report: DeviceReport) -> health_v1.DeviceHealth:
    return health_v1.DeviceHealth(
        device=health_v1.DeviceIdentifier(pool_name=report.pool, device_name=report.device),
        health=_STATUSES[report.status],
        health_check_timeout_seconds=int(report.timeout),
        message=report.message,
    )
