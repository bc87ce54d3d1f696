"""The example of a handler that follows, on a node in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from plugind.examples.following_handler import WatchingHandler
from plugind.protocol.plugins.health import Health
from plugind.protocol.proto.health_v1_grpc import HealthBase
from plugind.protocol.proto.health_v1_pb2 import HealthCheckRequest, HealthCheckResponse
from plugind.protocol.proto.pluginregistration_grpc import RegistrationBase
from plugind.protocol.proto.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from plugind.testing import SimulatedNode

if TYPE_CHECKING:
    from grpclib.server import Stream

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


class Registration(RegistrationBase):
    async def GetInfo(self, stream: Stream[InfoRequest, PluginInfo]) -> None:  # noqa: N802 - the name in the .proto
        await stream.recv_message()
        await stream.send_message(
            PluginInfo(type="WatchedPlugin", name="watched.example.com", supported_versions=["1.0"])
        )

    async def NotifyRegistrationStatus(self, stream: Stream[RegistrationStatus, RegistrationStatusResponse]) -> None:  # noqa: N802 - the name in the .proto
        await stream.recv_message()
        await stream.send_message(RegistrationStatusResponse())


class Service(HealthBase):
    """A health service whose answers a test chooses."""

    def __init__(self, *, implemented: bool = True) -> None:
        self.implemented = implemented
        self.changes, self._changes = trio.open_memory_channel[HealthCheckResponse.ServingStatus](16)

    async def Check(self, stream: Stream[HealthCheckRequest, HealthCheckResponse]) -> None:  # noqa: N802 - the name in the .proto
        await stream.recv_message()
        if not self.implemented:
            raise GRPCError(Status.UNIMPLEMENTED, "no such service")
        await stream.send_message(HealthCheckResponse(status=SERVING))

    async def Watch(self, stream: Stream[HealthCheckRequest, HealthCheckResponse]) -> None:  # noqa: N802 - the name in the .proto
        await stream.recv_message()
        await stream.send_message(HealthCheckResponse(status=SERVING))
        async for status in self._changes:
            await stream.send_message(HealthCheckResponse(status=status))


def health(node: SimulatedNode, socket: str = "w.sock") -> tuple[Health | None, str | None, bool | None]:
    status = node.status(socket)
    assert status is not None
    return status.health, status.health_reason, status.active


async def test_the_following_handler_reports_what_the_health_service_says(autojump_clock: MockClock) -> None:
    service = Service()
    async with SimulatedNode(handlers={"WatchedPlugin": WatchingHandler()}) as node:
        plugin = node.plug("w.sock", [Registration(), service])
        await node.settled()
        await trio.sleep(2)
        assert health(node) == (Health.HEALTHY, None, True)
        service.changes.send_nowait(NOT_SERVING)
        await trio.sleep(2)
        assert health(node) == (Health.UNHEALTHY, "its health service says NOT_SERVING", True)
        service.changes.send_nowait(SERVING)
        await trio.sleep(2)
        assert health(node) == (Health.HEALTHY, None, True)
        plugin.reset()
        await trio.sleep(0.5)
        assert health(node)[0] is Health.DISCONNECTED
        await trio.sleep(10)
        assert health(node) == (Health.HEALTHY, None, True)
        assert node.state("w.sock") == "registered"


async def test_an_instance_that_serves_is_preferred(autojump_clock: MockClock) -> None:
    """Behaviour 37."""
    older, newer = Service(), Service()
    async with SimulatedNode(handlers={"WatchedPlugin": WatchingHandler()}) as node:
        node.plug("a.sock", [Registration(), older])
        await trio.sleep(2)
        node.plug("b.sock", [Registration(), newer])
        await trio.sleep(2)
        assert (health(node, "a.sock")[2], health(node, "b.sock")[2]) == (False, True)
        newer.changes.send_nowait(NOT_SERVING)
        await trio.sleep(2)
        assert (health(node, "a.sock")[2], health(node, "b.sock")[2]) == (True, False)


async def test_a_plugin_without_a_health_service_is_refused(autojump_clock: MockClock) -> None:
    async with SimulatedNode(handlers={"WatchedPlugin": WatchingHandler()}) as node:
        node.plug("w.sock", [Registration(), Service(implemented=False)])
        await node.settled(patience=0)
        status = node.status("w.sock")
        assert status is not None
        assert status.cause == "plugin registration failed: it does not answer on grpc.health.v1: no such service"
