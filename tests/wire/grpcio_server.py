"""A grpcio server in this process, on its own threads: an implementation that we did not write."""

import concurrent.futures
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as device
from plugind.protocol.proto import example_v1beta1_pb2 as example
from plugind.protocol.proto import pluginregistration_pb2 as registration

INFO = registration.PluginInfo(
    type="CSIPlugin", name="csi.example.com", endpoint="/e.sock", supported_versions=["1.0.0"]
)


def get_info(request: object, context: grpc.ServicerContext) -> registration.PluginInfo:
    return INFO


def notify(request: object, context: grpc.ServicerContext) -> registration.RegistrationStatusResponse:
    return registration.RegistrationStatusResponse()


def echo(request: example.ExampleRequest, context: grpc.ServicerContext) -> example.ExampleResponse:
    return example.ExampleResponse(error=request.request)


def no_devices(request: object, context: grpc.ServicerContext) -> Iterator[device.ListAndWatchResponse]:
    yield device.ListAndWatchResponse()


@contextmanager
def grpcio_server(
    path: str,
    *,
    info: Callable[..., registration.PluginInfo] = get_info,
    example_info: Callable[..., example.ExampleResponse] = echo,
    watch: Callable[..., Iterator[device.ListAndWatchResponse]] = no_devices,
) -> Iterator[grpc.Server]:
    """Serve registration, the example service and the device plugin's stream on a unix socket."""
    services = {
        "pluginregistration.Registration": {
            "GetInfo": grpc.unary_unary_rpc_method_handler(
                info, registration.InfoRequest.FromString, registration.PluginInfo.SerializeToString
            ),
            "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                notify,
                registration.RegistrationStatus.FromString,
                registration.RegistrationStatusResponse.SerializeToString,
            ),
        },
        "v1beta1.Example": {
            "GetExampleInfo": grpc.unary_unary_rpc_method_handler(
                example_info, example.ExampleRequest.FromString, example.ExampleResponse.SerializeToString
            ),
        },
        "v1beta1.DevicePlugin": {
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                watch, device.Empty.FromString, device.ListAndWatchResponse.SerializeToString
            ),
        },
    }
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), options=options)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items()]
    )
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield server
    finally:
        server.stop(None).wait()
