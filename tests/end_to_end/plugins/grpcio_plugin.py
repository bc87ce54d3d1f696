"""A CSI driver on grpcio's server: ``grpcio_plugin.py SOCKET NAME``.

It prints a JSON line when it listens, and for each call.
"""

import concurrent.futures
import json
import os
import signal
import sys

import grpc

from plugind.protocol.proto import pluginregistration_pb2 as registration
from plugind.tests.end_to_end.plugins import grpcio_csi


def say(**line: object) -> None:
    # One unbuffered write: a killed process would lose a line in a buffer.
    os.write(1, json.dumps(line).encode() + b"\n")


def main(socket: str, name: str) -> None:
    def get_info(request: registration.InfoRequest, context: grpc.ServicerContext) -> registration.PluginInfo:
        say(call="GetInfo")
        return registration.PluginInfo(type="CSIPlugin", name=name, supported_versions=["1.0.0"])

    def notify(
        request: registration.RegistrationStatus, context: grpc.ServicerContext
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
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    registrar = grpc.method_handlers_generic_handler("pluginregistration.Registration", methods)
    server.add_generic_rpc_handlers([registrar, *grpcio_csi.services(name, "node-1")])
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    say(listening=socket)
    signal.sigwait({signal.SIGTERM})
    server.stop(1).wait()


if __name__ == "__main__":
    # The signal is blocked before grpcio starts its threads, so that only the main thread takes it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main(*sys.argv[1:])
