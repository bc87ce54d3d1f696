"""A registrar that exits once it is refused, as node-driver-registrar does, in one process with its CSI driver.

    python registrar.py SOCKET NAME VERSION

Its socket stays behind. Where it is registered, it lives until it is killed.
"""

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server

from plugind.protocol.proto.csi_v1_grpc import IdentityBase
from plugind.protocol.proto.csi_v1_pb2 import GetPluginInfoRequest, GetPluginInfoResponse
from plugind.protocol.proto.pluginregistration_grpc import RegistrationBase
from plugind.protocol.proto.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)

if TYPE_CHECKING:
    from grpclib.server import Stream


class Registration(RegistrationBase):
    def __init__(self, name: str, version: str) -> None:
        self._info = PluginInfo(type="CSIPlugin", name=name, supported_versions=[version])

    async def GetInfo(self, stream: "Stream[InfoRequest, PluginInfo]") -> None:  # noqa: N802 - the service names it
        await stream.recv_message()
        await stream.send_message(self._info)

    async def NotifyRegistrationStatus(  # noqa: N802
        self, stream: "Stream[RegistrationStatus, RegistrationStatusResponse]"
    ) -> None:
        status = await stream.recv_message()
        if status is not None and not status.plugin_registered:
            # Within the call, which so gets no answer.
            os._exit(1)
        await stream.send_message(RegistrationStatusResponse())


class Driver(IdentityBase):
    """A driver with no capability and no Node service: only its name is asked."""

    def __init__(self, name: str) -> None:
        self._info = GetPluginInfoResponse(name=name, vendor_version="1.0.0")

    async def GetPluginInfo(self, stream: "Stream[GetPluginInfoRequest, GetPluginInfoResponse]") -> None:  # noqa: N802
        await stream.recv_message()
        await stream.send_message(self._info)

    async def _unimplemented(self, stream: object) -> None:
        raise GRPCError(Status.UNIMPLEMENTED)

    GetPluginCapabilities = Probe = _unimplemented


async def main(path: str, name: str, version: str) -> None:
    server = Server([Registration(name, version), Driver(name)])
    await server.start(path=path)
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
