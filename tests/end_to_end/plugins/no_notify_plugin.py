"""A DRA driver that cannot be notified: ``no_notify_plugin.py SOCKET NAME (none|base)``, on grpcio's server.

With ``none`` its server does not know the method; with ``base`` it has the method of the generated base class, which
answers that it is not implemented. It prints a JSON line when it listens, and for each call.
"""

import concurrent.futures
import json
import os
import signal
import sys

import grpc

from plugind.protocol.proto import pluginregistration_pb2 as registration


def say(**line: object) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def main(socket: str, name: str, kind: str) -> None:
    def get_info(request: registration.InfoRequest, context: grpc.ServicerContext) -> registration.PluginInfo:
        say(call="GetInfo")
        return registration.PluginInfo(type="DRAPlugin", name=name, supported_versions=["v1.DRAPlugin"])

    def notify(
        request: registration.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration.RegistrationStatusResponse:
        say(call="NotifyRegistrationStatus", plugin_registered=request.plugin_registered)
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not implemented!")
        raise AssertionError("abort raises")

    methods = {
        "GetInfo": grpc.unary_unary_rpc_method_handler(
            get_info, registration.InfoRequest.FromString, registration.PluginInfo.SerializeToString
        )
    }
    if kind == "base":
        methods["NotifyRegistrationStatus"] = grpc.unary_unary_rpc_method_handler(
            notify,
            registration.RegistrationStatus.FromString,
            registration.RegistrationStatusResponse.SerializeToString,
        )
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    handler = grpc.method_handlers_generic_handler("pluginregistration.Registration", methods)
    server.add_generic_rpc_handlers([handler])
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    say(listening=socket)
    signal.sigwait({signal.SIGTERM})
    server.stop(1).wait()


if __name__ == "__main__":
    # Blocked before grpcio starts its threads, so that the signal waits for the main one.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main(*sys.argv[1:])
