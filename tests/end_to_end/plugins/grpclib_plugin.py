"""Device plugins on grpclib's own asyncio server: ``python grpclib_plugin.py [--idle] (SOCKET NAME)...``.

It prints a JSON line when it listens, and for each call. With ``--idle`` it binds and listens, prints a line, and
serves once it reads a line.
"""

import asyncio
import json
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server

from plugind.protocol.proto.deviceplugin_v1beta1_grpc import DevicePluginBase
from plugind.protocol.proto.deviceplugin_v1beta1_pb2 import (
    Device,
    DevicePluginOptions,
    Empty,
    ListAndWatchResponse,
)
from plugind.protocol.proto.pluginregistration_grpc import RegistrationBase
from plugind.protocol.proto.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)

if TYPE_CHECKING:
    from grpclib.server import Stream


def say(**line: object) -> None:
    # One unbuffered write: a killed process would lose a line in a buffer.
    os.write(1, json.dumps(line).encode() + b"\n")


class Registration(RegistrationBase):
    def __init__(self, name: str) -> None:
        self.name = name

    async def GetInfo(self, stream: "Stream[InfoRequest, PluginInfo]") -> None:  # noqa: N802 - the service names it
        await stream.recv_message()
        say(call="GetInfo", name=self.name)
        await stream.send_message(PluginInfo(type="DevicePlugin", name=self.name, supported_versions=["v1beta1"]))

    async def NotifyRegistrationStatus(  # noqa: N802
        self, stream: "Stream[RegistrationStatus, RegistrationStatusResponse]"
    ) -> None:
        status = await stream.recv_message()
        assert status is not None
        await stream.send_message(RegistrationStatusResponse())
        say(
            call="NotifyRegistrationStatus",
            name=self.name,
            plugin_registered=status.plugin_registered,
            error=status.error,
        )


class Devices(DevicePluginBase):
    async def GetDevicePluginOptions(self, stream: "Stream[Empty, DevicePluginOptions]") -> None:  # noqa: N802
        await stream.recv_message()
        await stream.send_message(DevicePluginOptions())

    async def ListAndWatch(self, stream: "Stream[Empty, ListAndWatchResponse]") -> None:  # noqa: N802
        await stream.recv_message()
        await stream.send_message(ListAndWatchResponse(devices=[Device(ID="0", health="Healthy")]))
        # The stream stays open for as long as the device plugin runs.
        await asyncio.Event().wait()

    async def _unimplemented(self, stream: object) -> None:
        raise GRPCError(Status.UNIMPLEMENTED)

    GetPreferredAllocation = Allocate = PreStartContainer = _unimplemented


async def main(arguments: list[str]) -> None:
    idle = arguments[:1] == ["--idle"]
    pairs = arguments[1:] if idle else arguments
    servers = []
    for path, name in zip(pairs[::2], pairs[1::2], strict=True):
        server = Server([Registration(name), Devices()])
        if idle:
            bound = socket.socket(socket.AF_UNIX)
            bound.bind(path)
            bound.listen()
            say(bound=path)
            sys.stdin.readline()
            await server.start(sock=bound)
        else:
            await server.start(path=path)
        servers.append(server)
    say(listening=pairs[::2])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    for server in servers:
        server.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
