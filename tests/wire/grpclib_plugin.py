"""grpclib's own asyncio server as a process: ``python -m plugind.tests.wire.grpclib_plugin SOCKET``.

It prints ``ready`` when it listens.
"""

import asyncio
import sys
from typing import TYPE_CHECKING

from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server

from plugind.protocol.proto.deviceplugin_v1beta1_grpc import DevicePluginBase
from plugind.protocol.proto.deviceplugin_v1beta1_pb2 import Device, Empty, ListAndWatchResponse
from plugind.protocol.proto.example_v1beta1_grpc import ExampleBase
from plugind.protocol.proto.example_v1beta1_pb2 import ExampleRequest, ExampleResponse

if TYPE_CHECKING:
    from grpclib.server import Stream


class Example(ExampleBase):
    async def GetExampleInfo(self, stream: "Stream[ExampleRequest, ExampleResponse]") -> None:  # noqa: N802 - the service names it
        request = await stream.recv_message()
        assert request is not None
        if request.v1beta1_field:
            raise GRPCError(Status[request.v1beta1_field], "für %41 ✓")
        await stream.send_message(ExampleResponse(error=request.request))


class Devices(DevicePluginBase):
    async def ListAndWatch(self, stream: "Stream[Empty, ListAndWatchResponse]") -> None:  # noqa: N802
        await stream.recv_message()
        for number in range(50):
            await stream.send_message(ListAndWatchResponse(devices=[Device(ID=str(number) * 1000)]))

    async def _unimplemented(self, stream: object) -> None:
        raise GRPCError(Status.UNIMPLEMENTED)

    GetDevicePluginOptions = GetPreferredAllocation = Allocate = PreStartContainer = _unimplemented


async def main(path: str) -> None:
    server = Server([Example(), Devices()])
    await server.start(path=path)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
