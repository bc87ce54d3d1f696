"""A device plugin on grpcio's asyncio server: ``grpcio_devices.py DIRECTORY FILE RESOURCE [options]``.

Its services are on DIRECTORY/FILE. The docstring of ``device_plugins.py`` describes the options, the signals, and the
lines that it prints, and how to run it by hand. It keeps to the habits of real device plugins: it looks at its own
socket file from time to time, before and after it is registered, and starts anew when the file is gone. With ``--sign
kubelet`` it looks at ``kubelet.sock`` instead, and starts anew when there is another one. With ``--stop-before-list``
it stops itself, as by SIGSTOP, before the first list of its first stream.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
from google.protobuf.message import Message

from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as device
from plugind.protocol.proto import pluginregistration_pb2 as registration

#: Seconds between two looks at its socket file, and between two tries to register.
PERIOD = 0.1


def say(**line: object) -> None:
    # One unbuffered write: a killed process would lose a line in a buffer.
    os.write(1, json.dumps(line).encode() + b"\n")


def encoded(message: Message) -> bytes:
    return message.SerializeToString()


class Devices:
    """The list of devices, and the streams that follow it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._ids = [f"{arguments.resource.rpartition('/')[2]}-{number}" for number in range(arguments.devices)]
        self._options = device.DevicePluginOptions(
            pre_start_required=arguments.pre_start, get_preferred_allocation_available=arguments.preferred
        )
        self._stops = bool(arguments.stop_before_list)
        self._arguments = arguments
        self._unhealthy: set[str] = set()
        self._streams: set[asyncio.Queue[bool]] = set()

    def turn(self, *, healthy: bool) -> None:
        """Let the first device become healthy or unhealthy."""
        self._unhealthy = set() if healthy else set(self._ids[:1])
        self._wake(True)

    def end_streams(self) -> None:
        """End each open stream with UNAVAILABLE."""
        self._wake(False)

    def _wake(self, live: bool) -> None:
        for stream in self._streams:
            stream.put_nowait(live)

    def _list(self) -> device.ListAndWatchResponse:
        listed = [
            device.Device(
                ID=name,
                health="Unhealthy" if name in self._unhealthy else "Healthy",
                topology=device.TopologyInfo(nodes=[device.NUMANode(ID=number % 2)]),
            )
            for number, name in enumerate(self._ids)
        ]
        return device.ListAndWatchResponse(devices=listed)

    async def options(self, request: device.Empty, context: grpc.aio.ServicerContext) -> device.DevicePluginOptions:
        say(call="GetDevicePluginOptions")
        return self._options

    async def watch(
        self, request: device.Empty, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[device.ListAndWatchResponse]:
        changes: asyncio.Queue[bool] = asyncio.Queue()
        self._streams.add(changes)
        say(call="ListAndWatch", streams=len(self._streams))
        if self._stops:
            self._stops = False
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            while True:
                yield self._list()
                say(listed=len(self._ids), unhealthy=len(self._unhealthy))
                if not await changes.get():
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the stream was told to end")
        finally:
            self._streams.discard(changes)
            say(ended="ListAndWatch", streams=len(self._streams))

    async def preferred(
        self, request: device.PreferredAllocationRequest, context: grpc.aio.ServicerContext
    ) -> device.PreferredAllocationResponse:
        say(call="GetPreferredAllocation")
        answers = [
            device.ContainerPreferredAllocationResponse(deviceIDs=self._prefer(one))
            for one in request.container_requests
        ]
        return device.PreferredAllocationResponse(container_responses=answers)

    def _prefer(self, request: device.ContainerPreferredAllocationRequest) -> list[str]:
        """Return what must be included first, then what is available; each device once."""
        chosen = list(dict.fromkeys([*request.must_include_deviceIDs, *request.available_deviceIDs]))
        return chosen[: request.allocation_size]

    async def allocate(self, request: device.AllocateRequest, context: grpc.aio.ServicerContext) -> Message:
        answers = []
        for one in request.container_requests:
            say(call="Allocate", ids=list(one.devices_ids))
            nodes = [
                device.DeviceSpec(
                    container_path="/dev/null" if self._arguments.plain else f"/dev/{name}",
                    host_path="/dev/null",
                    permissions="rw",
                )
                for name in one.devices_ids
            ]
            envs = {"VISIBLE_DEVICES": ",".join(one.devices_ids)}
            answers.append(device.ContainerAllocateResponse(envs=envs, devices=nodes))
        if self._arguments.hang:
            await asyncio.Event().wait()
        return device.AllocateResponse(container_responses=answers)

    async def pre_start(
        self, request: device.PreStartContainerRequest, context: grpc.aio.ServicerContext
    ) -> device.PreStartContainerResponse:
        say(call="PreStartContainer", ids=list(request.devices_ids))
        return device.PreStartContainerResponse()

    def handler(self) -> grpc.GenericRpcHandler:
        unary: dict[str, tuple[Callable[..., Awaitable[Message]], type[Message]]] = {
            "GetDevicePluginOptions": (self.options, device.Empty),
            "GetPreferredAllocation": (self.preferred, device.PreferredAllocationRequest),
            "Allocate": (self.allocate, device.AllocateRequest),
            "PreStartContainer": (self.pre_start, device.PreStartContainerRequest),
        }
        methods = {
            name: grpc.unary_unary_rpc_method_handler(method, request.FromString, encoded)
            for name, (method, request) in unary.items()
        }
        methods["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(
            self.watch, device.Empty.FromString, device.ListAndWatchResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)


def registration_handler(name: str) -> grpc.GenericRpcHandler:
    """Return the service of a plugin that is found by its socket."""

    async def get_info(request: registration.InfoRequest, context: grpc.aio.ServicerContext) -> registration.PluginInfo:
        say(call="GetInfo")
        return registration.PluginInfo(type="DevicePlugin", name=name, supported_versions=["v1beta1"])

    async def notify(
        request: registration.RegistrationStatus, context: grpc.aio.ServicerContext
    ) -> registration.RegistrationStatusResponse:
        say(call="NotifyRegistrationStatus", plugin_registered=request.plugin_registered, error=request.error)
        return registration.RegistrationStatusResponse()

    methods = {
        "GetInfo": grpc.unary_unary_rpc_method_handler(
            get_info, registration.InfoRequest.FromString, registration.PluginInfo.SerializeToString
        ),
        "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
            notify,
            registration.RegistrationStatus.FromString,
            registration.RegistrationStatusResponse.SerializeToString,
        ),
    }
    return grpc.method_handlers_generic_handler("pluginregistration.Registration", methods)


async def register(directory: str, request: device.RegisterRequest) -> None:
    """Call Register on ``kubelet.sock`` until it is answered with OK."""
    while True:
        async with grpc.aio.insecure_channel(f"unix:{directory}/kubelet.sock") as channel:
            call = channel.unary_unary(
                "/v1beta1.Registration/Register", device.RegisterRequest.SerializeToString, device.Empty.FromString
            )
            try:
                await call(request, timeout=20)
            except grpc.aio.AioRpcError as error:
                say(call="Register", registered=False, code=error.code().name, error=error.details())
                await asyncio.sleep(PERIOD)
            else:
                say(call="Register", registered=True, code="OK", error="")
                return


def file_at(path: str) -> int | None:
    """Return the inode of what is at ``path``."""
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return None


async def live(arguments: argparse.Namespace, devices: Devices) -> None:
    """Serve, register where that is the route, and return once the socket file is gone."""
    path = os.path.join(arguments.directory, arguments.file)
    server = grpc.aio.server()
    services = [devices.handler()]
    if arguments.route == "socket":
        services.append(registration_handler(arguments.resource))
    server.add_generic_rpc_handlers(services)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    sign = path if arguments.sign == "own" else os.path.join(arguments.directory, "kubelet.sock")
    seen = file_at(sign)
    say(listening=path)
    request = device.RegisterRequest(version="v1beta1", endpoint=arguments.file, resource_name=arguments.resource)
    try:
        # A call that is refused again and again must not keep it from looking at the file.
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(register(arguments.directory, request))] if arguments.route == "call" else []
            while file_at(sign) == seen:  # noqa: ASYNC110 - a look at a file, as real plugins do it
                await asyncio.sleep(PERIOD)
            say(lost=sign)
            for call in calls:
                call.cancel()
    finally:
        await server.stop(0)


async def main(arguments: argparse.Namespace) -> None:
    devices = Devices(arguments)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: devices.turn(healthy=False))
    loop.add_signal_handler(signal.SIGUSR2, lambda: devices.turn(healthy=True))
    loop.add_signal_handler(signal.SIGHUP, devices.end_streams)
    serving = asyncio.current_task()
    assert serving is not None
    loop.add_signal_handler(signal.SIGTERM, serving.cancel)
    while True:
        await live(arguments, devices)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("file")
    parser.add_argument("resource")
    parser.add_argument("--route", choices=["call", "socket"], default="call")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--sign", choices=["own", "kubelet"], default="own")
    parser.add_argument("--stop-before-list", action="store_true")
    parser.add_argument("--pre-start", action="store_true")
    parser.add_argument("--preferred", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--hang", choices=["Allocate"])
    # SIGTERM cancels it; then it ends in order.
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(main(parser.parse_args()))
