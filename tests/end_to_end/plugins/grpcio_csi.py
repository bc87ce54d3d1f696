"""A CSI driver on grpcio's server; the docstring of ``csi_drivers.py`` describes it, and what it prints."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import sys

import grpc
from google.protobuf.message import Message

from plugind.protocol.proto import csi_v1_pb2 as csi
from plugind.protocol.proto import pluginregistration_pb2 as registration


def say(**line: object) -> None:
    # One unbuffered write: a killed process would lose a line in a buffer.
    os.write(1, json.dumps(line).encode() + b"\n")


def services(name: str, node_id: str) -> list[grpc.GenericRpcHandler]:
    """Return csi.v1.Identity and csi.v1.Node of the driver ``name``."""
    capability = csi.NodeServiceCapability.RPC(type="STAGE_UNSTAGE_VOLUME")
    controller = csi.PluginCapability.Service(type="CONTROLLER_SERVICE")
    identity = {
        "GetPluginInfo": csi.GetPluginInfoResponse(name=name, vendor_version="2.1.0"),
        "GetPluginCapabilities": csi.GetPluginCapabilitiesResponse(
            capabilities=[csi.PluginCapability(service=controller)]
        ),
        "Probe": csi.ProbeResponse(),
    }
    node = {
        "NodeGetCapabilities": csi.NodeGetCapabilitiesResponse(
            capabilities=[csi.NodeServiceCapability(rpc=capability)]
        ),
        "NodeGetInfo": csi.NodeGetInfoResponse(
            node_id=node_id, max_volumes_per_node=16, accessible_topology=csi.Topology(segments={"zone": "z1"})
        ),
    }
    return [_service("csi.v1.Identity", identity), _service("csi.v1.Node", node)]


def _service(service: str, answers: dict[str, Message]) -> grpc.GenericRpcHandler:
    methods = {method: _method(method, answer) for method, answer in answers.items()}
    return grpc.method_handlers_generic_handler(service, methods)


def _method(method: str, answer: Message) -> grpc.RpcMethodHandler:
    def call(request: bytes, context: grpc.ServicerContext) -> bytes:
        say(call=method)
        return answer.SerializeToString()

    # Each request is an empty message, so that it is not parsed.
    return grpc.unary_unary_rpc_method_handler(call)


def registrar(name: str, endpoint: str) -> grpc.GenericRpcHandler:
    """Return the registration service of the driver."""

    def get_info(request: registration.InfoRequest, context: grpc.ServicerContext) -> registration.PluginInfo:
        say(call="GetInfo")
        return registration.PluginInfo(type="CSIPlugin", name=name, endpoint=endpoint, supported_versions=["1.0.0"])

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
    return grpc.method_handlers_generic_handler("pluginregistration.Registration", methods)


def serve(socket: str, handlers: list[grpc.GenericRpcHandler]) -> grpc.Server:
    """Serve at ``socket``."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(handlers)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    return server


def main(socket: str, name: str, endpoint: str, node_id: str) -> None:
    servers = [serve(endpoint, services(name, node_id)), serve(socket, [registrar(name, endpoint)])]
    say(listening=socket)
    signal.sigwait({signal.SIGTERM})
    for server in servers:
        server.stop(1).wait()


if __name__ == "__main__":
    # The signal is blocked before grpcio starts its threads, so that only the main thread takes it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main(*sys.argv[1:])
