"""The services of a CSI driver for grpcio's servers, by themselves or beside a registration service."""

from __future__ import annotations

from collections.abc import Callable

import grpc
from google.protobuf.message import Message

from plugind.protocol.proto import csi_v1_pb2 as csi


def services(name: str, node_id: str) -> list[grpc.GenericRpcHandler]:
    """Return csi.v1.Identity and csi.v1.Node of the driver ``name``."""
    capability = csi.NodeServiceCapability.RPC(type="STAGE_UNSTAGE_VOLUME")
    controller = csi.PluginCapability.Service(type="CONTROLLER_SERVICE")
    identity = {
        "GetPluginInfo": _method(
            csi.GetPluginInfoRequest, csi.GetPluginInfoResponse(name=name, vendor_version="2.1.0")
        ),
        "GetPluginCapabilities": _method(
            csi.GetPluginCapabilitiesRequest,
            csi.GetPluginCapabilitiesResponse(capabilities=[csi.PluginCapability(service=controller)]),
        ),
        "Probe": _method(csi.ProbeRequest, csi.ProbeResponse()),
    }
    node = {
        "NodeGetCapabilities": _method(
            csi.NodeGetCapabilitiesRequest,
            csi.NodeGetCapabilitiesResponse(capabilities=[csi.NodeServiceCapability(rpc=capability)]),
        ),
        "NodeGetInfo": _method(
            csi.NodeGetInfoRequest,
            csi.NodeGetInfoResponse(
                node_id=node_id, max_volumes_per_node=16, accessible_topology=csi.Topology(segments={"zone": "z1"})
            ),
        ),
    }
    return [
        grpc.method_handlers_generic_handler("csi.v1.Identity", identity),
        grpc.method_handlers_generic_handler("csi.v1.Node", node),
    ]


def _method(request: type[Message], answer: Message) -> grpc.RpcMethodHandler:
    serialize: Callable[[Message], bytes] = type(answer).SerializeToString
    return grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer, request.FromString, serialize)
