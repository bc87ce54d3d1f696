"""Device plugins on grpcio in one process, each on a socket of its own, whose lists change all the time.

Each call of Allocate gets the same answer.

    python -m benchmarks.plugins.device_server --dir D --plugins 100 --devices 1000 --changed 1 --period 1

Each socket serves the registration and the devices. Every period each open stream is sent the list, in which
``changed`` devices have turned unhealthy, or healthy again. For each line on its standard input the process prints a
line of JSON with its counts; it ends with its input.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import grpc
import grpc.aio

from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as device
from plugind.protocol.proto import pluginregistration_pb2 as registration


@attrs.define
class Counts:
    """What has happened so far, in all plugins together."""

    #: Lists that were sent.
    sent: int = 0
    #: Streams that are open now.
    streams: int = 0
    #: Notifications of success.
    registered: int = 0
    #: Calls of Allocate.
    allocated: int = 0


#: The answer to each Allocate.
ALLOCATED = device.AllocateResponse(
    container_responses=[
        device.ContainerAllocateResponse(
            envs={"BENCH_VISIBLE_DEVICES": "0"},
            devices=[device.DeviceSpec(host_path="/dev/null", container_path="/dev/null", permissions="rw")],
        )
    ]
).SerializeToString()


def socket_of(directory: Path, number: int) -> Path:
    """Return the socket of a plugin."""
    return directory / f"device-{number:04}.sock"


def list_of(devices: int, unhealthy: range) -> bytes:
    """Return a list as a plugin sends it."""
    return device.ListAndWatchResponse(
        devices=[
            device.Device(
                ID=f"GPU-{number:08x}-4b5c-4f4e-9b1d-0123456789ab",
                health="Unhealthy" if number in unhealthy else "Healthy",
                topology=device.TopologyInfo(nodes=[device.NUMANode(ID=number % 2)]),
            )
            for number in range(devices)
        ]
    ).SerializeToString()


class Plugin:
    """One device plugin."""

    def __init__(self, number: int, lists: tuple[bytes, bytes], period: float, counts: Counts) -> None:
        self._number = number
        self._lists = lists
        self._period = period
        self._counts = counts

    async def get_info(self, _: bytes, __: grpc.aio.ServicerContext) -> bytes:
        """Answer GetInfo."""
        name = f"bench.example.com/device-{self._number}"
        info = registration.PluginInfo(type="DevicePlugin", name=name, supported_versions=["v1beta1"])
        return info.SerializeToString()

    async def notify(self, request: bytes, _: grpc.aio.ServicerContext) -> bytes:
        """Answer NotifyRegistrationStatus."""
        self._counts.registered += registration.RegistrationStatus.FromString(request).plugin_registered
        return b""

    async def options(self, _: bytes, __: grpc.aio.ServicerContext) -> bytes:
        """Answer GetDevicePluginOptions."""
        return b""

    async def allocate(self, _: bytes, __: grpc.aio.ServicerContext) -> bytes:
        """Answer Allocate."""
        self._counts.allocated += 1
        return ALLOCATED

    async def lists(self, _: bytes, __: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        """Send both lists in turn."""
        self._counts.streams += 1
        try:
            while True:
                for sent in self._lists:
                    yield sent
                    self._counts.sent += 1
                    await asyncio.sleep(self._period)
        finally:
            self._counts.streams -= 1

    def server(self, path: Path) -> grpc.aio.Server:
        """Return a server on the socket ``path``."""
        unary = grpc.unary_unary_rpc_method_handler
        server = grpc.aio.server()
        for service, methods in {
            "pluginregistration.Registration": {
                "GetInfo": unary(self.get_info),
                "NotifyRegistrationStatus": unary(self.notify),
            },
            "v1beta1.DevicePlugin": {
                "GetDevicePluginOptions": unary(self.options),
                "Allocate": unary(self.allocate),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(self.lists),
            },
        }.items():
            server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, methods)])
        server.add_insecure_port(f"unix:{path}")
        return server


async def serve(directory: Path, plugins: int, lists: tuple[bytes, bytes], period: float) -> None:
    """Serve until the standard input ends."""
    counts = Counts()
    servers = []
    for number in range(plugins):
        server = Plugin(number, lists, period, counts).server(socket_of(directory, number))
        await server.start()
        servers.append(server)
    print(json.dumps({"listening": plugins}), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(attrs.asdict(counts)), flush=True)
    await asyncio.gather(*(server.stop(None) for server in servers))


def main() -> int:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", dest="directory", type=Path, required=True, help="the directory for the sockets")
    parser.add_argument("--plugins", type=int, default=100)
    parser.add_argument("--devices", type=int, default=1000, help="devices of each plugin (default 1000)")
    parser.add_argument("--changed", type=int, default=1, help="devices that turn with each list (default 1)")
    parser.add_argument("--period", type=float, default=1.0, help="seconds between two lists (default 1)")
    options = parser.parse_args()
    step = max(1, options.devices // max(1, options.changed))
    unhealthy = range(step // 2, step * options.changed, step) if options.changed else range(0)
    lists = list_of(options.devices, range(0)), list_of(options.devices, unhealthy)
    asyncio.run(serve(options.directory, options.plugins, lists, options.period))
    return 0


if __name__ == "__main__":
    sys.exit(main())
