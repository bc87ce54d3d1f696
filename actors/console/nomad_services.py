"""The gRPC services that an agent of Nomad asks of a device plugin: go-plugin's, and Nomad's own two.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...protocol.nomad import NomadError
from ...protocol.proto import go_plugin_pb2, health_v1_pb2, nomad_base_pb2, nomad_device_pb2
from ...protocol.proto.go_plugin_grpc import GRPCBrokerBase, GRPCControllerBase
from ...protocol.proto.health_v1_grpc import HealthBase
from ...protocol.proto.nomad_base_grpc import BasePluginBase
from ...protocol.proto.nomad_device_grpc import DevicePluginBase
from ...protocol.version import __version__
from ..client.errors import ClientError, LeaseFailedError
from .ending import complain

if TYPE_CHECKING:
    from grpclib.server import Stream

    from .nomad_pool import NomadPool

#: The version of Nomad's device plugins that is spoken; it has been the only one.
API: Final = "v0.1.0"
#: The service whose health go-plugin asks for.
_SERVICE: Final = "plugin"
#: Seconds between two statistics at least.
_SHORTEST: Final = 1.0
#: What Nomad can compare of a version.
_RELEASE: Final = re.compile(r"\d+\.\d+\.\d+")


class PluginHealth(HealthBase):
    """The health of this plugin: it is there."""

    async def Check(  # noqa: N802 - of gRPC
        self, stream: Stream[health_v1_pb2.HealthCheckRequest, health_v1_pb2.HealthCheckResponse]
    ) -> None:
        """Answer for the service that go-plugin asks for."""
        request = await stream.recv_message()
        if request is None or request.service not in ("", _SERVICE):
            raise GRPCError(Status.NOT_FOUND, "there is no such service")
        await stream.send_message(health_v1_pb2.HealthCheckResponse(status="SERVING"))

    async def Watch(  # noqa: N802
        self, stream: Stream[health_v1_pb2.HealthCheckRequest, health_v1_pb2.HealthCheckResponse]
    ) -> None:
        """Say so once; nothing changes."""
        await stream.recv_message()
        await stream.send_message(health_v1_pb2.HealthCheckResponse(status="SERVING"))
        await trio.sleep_forever()


class Broker(GRPCBrokerBase):
    """Has no further connections to name."""

    async def StartStream(  # noqa: N802
        self, stream: Stream[go_plugin_pb2.ConnInfo, go_plugin_pb2.ConnInfo]
    ) -> None:
        """Read until the agent ends."""
        async for _ in stream:
            pass


class Controller(GRPCControllerBase):
    """Ends this process when it is asked to."""

    def __init__(self, stopping: trio.Event) -> None:
        """Set ``stopping`` then."""
        self._stopping = stopping

    async def Shutdown(  # noqa: N802
        self, stream: Stream[go_plugin_pb2.Empty, go_plugin_pb2.Empty]
    ) -> None:
        """Answer, and end."""
        await stream.recv_message()
        await stream.send_message(go_plugin_pb2.Empty())
        self._stopping.set()


class Base(BasePluginBase):
    """What Nomad asks of each plugin."""

    def __init__(self, name: str) -> None:
        """Be the plugin of this name, which no other of the agent has."""
        self._name = name

    async def PluginInfo(  # noqa: N802
        self, stream: Stream[nomad_base_pb2.PluginInfoRequest, nomad_base_pb2.PluginInfoResponse]
    ) -> None:
        """Say that it is a device plugin, and of which version."""
        await stream.recv_message()
        release = _RELEASE.match(__version__)
        await stream.send_message(
            nomad_base_pb2.PluginInfoResponse(
                type=nomad_base_pb2.DEVICE,
                plugin_api_versions=[API],
                plugin_version=release[0] if release else "0.0.0",
                name=self._name,
            )
        )

    async def ConfigSchema(  # noqa: N802
        self, stream: Stream[nomad_base_pb2.ConfigSchemaRequest, nomad_base_pb2.ConfigSchemaResponse]
    ) -> None:
        """Say that the block ``config`` has to be empty: everything is in the arguments."""
        await stream.recv_message()
        nothing = nomad_base_pb2.Spec(object=nomad_base_pb2.Object())
        await stream.send_message(nomad_base_pb2.ConfigSchemaResponse(spec=nothing))

    async def SetConfig(  # noqa: N802
        self, stream: Stream[nomad_base_pb2.SetConfigRequest, nomad_base_pb2.SetConfigResponse]
    ) -> None:
        """Take the version of the API, and nothing else."""
        request = await stream.recv_message()
        if request is not None and request.plugin_api_version not in ("", API):
            raise GRPCError(Status.INVALID_ARGUMENT, f"plugind speaks {API} of device plugins alone")
        await stream.send_message(nomad_base_pb2.SetConfigResponse())


class Devices(DevicePluginBase):
    """The devices of a pool."""

    def __init__(self, pool: NomadPool) -> None:
        """Offer the devices of ``pool``."""
        self._pool = pool

    async def Fingerprint(  # noqa: N802
        self, stream: Stream[nomad_device_pb2.FingerprintRequest, nomad_device_pb2.FingerprintResponse]
    ) -> None:
        """Send all devices, and again whenever something has changed. It never ends by itself."""
        await stream.recv_message()
        last = None
        while True:
            last = await self._pool.fingerprint(last)
            await stream.send_message(last)

    async def Reserve(  # noqa: N802
        self, stream: Stream[nomad_device_pb2.ReserveRequest, nomad_device_pb2.ReserveResponse]
    ) -> None:
        """Lease devices for a task."""
        request = await stream.recv_message()
        try:
            given = await self._pool.reserve(list(request.device_ids) if request is not None else [])
        except (NomadError, LeaseFailedError) as error:
            complain(f"a reservation has failed: {error}")
            raise GRPCError(Status.FAILED_PRECONDITION, str(error)) from error
        except ClientError as error:
            complain(f"a reservation has failed: {error}")
            raise GRPCError(Status.UNAVAILABLE, str(error)) from error
        await stream.send_message(nomad_device_pb2.ReserveResponse(container_res=given))

    async def Stats(  # noqa: N802
        self, stream: Stream[nomad_device_pb2.StatsRequest, nomad_device_pb2.StatsResponse]
    ) -> None:
        """Send the health of all devices, as often as it is asked for."""
        request = await stream.recv_message()
        assert request is not None, "a unary request has a message"
        interval = request.collection_interval.seconds + request.collection_interval.nanos / 1e9
        while True:
            await stream.send_message(self._pool.statistics())
            await trio.sleep(max(interval, _SHORTEST))
