"""A device plugin on grpcio that registers by calls: ``grpcio_device_plugin.py DIR ENDPOINT``.

It serves on ``DIR/ENDPOINT``. For each line of JSON on its standard input, with the fields of a RegisterRequest, it
calls Register on ``DIR/kubelet.sock`` and prints a JSON line with the code and the text of the answer. It ends with its
input.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import sys
import threading
from collections.abc import Iterator

import grpc

from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as device

SERVICE = "v1beta1.DevicePlugin"


def say(**line: object) -> None:
    # One unbuffered write: a killed process would lose a line in a buffer.
    os.write(1, json.dumps(line).encode() + b"\n")


def options(request: device.Empty, context: grpc.ServicerContext) -> device.DevicePluginOptions:
    say(call="GetDevicePluginOptions")
    return device.DevicePluginOptions()


def lists(request: device.Empty, context: grpc.ServicerContext) -> Iterator[device.ListAndWatchResponse]:
    say(call="ListAndWatch")
    ended = threading.Event()
    context.add_callback(ended.set)
    yield device.ListAndWatchResponse(devices=[device.Device(ID="0", health="Healthy")])
    ended.wait()


def main(directory: str, endpoint: str) -> None:
    methods = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
            options, device.Empty.FromString, device.DevicePluginOptions.SerializeToString
        ),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(
            lists, device.Empty.FromString, device.ListAndWatchResponse.SerializeToString
        ),
    }
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
    server.add_insecure_port(f"unix:{directory}/{endpoint}")
    server.start()
    say(listening=endpoint)
    for line in sys.stdin:
        register(directory, device.RegisterRequest(**json.loads(line)))
    server.stop(0).wait()


def register(directory: str, request: device.RegisterRequest) -> None:
    with grpc.insecure_channel(f"unix:{directory}/kubelet.sock") as channel:
        call = channel.unary_unary(
            "/v1beta1.Registration/Register", device.RegisterRequest.SerializeToString, device.Empty.FromString
        )
        try:
            call(request, timeout=30)
        except grpc.RpcError as error:
            say(answer=error.code().name, text=error.details())
        else:
            say(answer="OK", text="")


if __name__ == "__main__":
    main(*sys.argv[1:])
