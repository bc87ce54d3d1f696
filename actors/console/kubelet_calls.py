"""The kubelet's first call to a plugin's endpoint, by type. It is a part of the kubelet's registration.

The kubelet does not call a DRA driver before it is needed. plugind makes the call to a device plugin, too.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from ...protocol.errors import ValidationError
from ...protocol.plugins import CSI, DEVICE
from ...protocol.proto.csi_v1_grpc import NodeStub
from ...protocol.proto.csi_v1_pb2 import NodeGetInfoRequest
from ...protocol.proto.deviceplugin_v1beta1_grpc import DevicePluginStub
from ...protocol.proto.deviceplugin_v1beta1_pb2 import Empty
from ...protocol.text import quoted
from ..io.grpc_client.channel import Channel


async def _node_get_info(channel: Channel, timeout: float) -> str:
    reply = await channel.stub(NodeStub).NodeGetInfo(NodeGetInfoRequest(), timeout=timeout)
    if not reply.node_id:
        raise ValidationError("error adding CSI driver node info: driverNodeID must not be empty")
    return f"the driver calls this node {quoted(reply.node_id)}"


async def _get_options(channel: Channel, timeout: float) -> str:
    await channel.stub(DevicePluginStub).GetDevicePluginOptions(Empty(), timeout=timeout)
    return "answered"


#: The method's name, and a function that calls it on a channel to the endpoint within a number of seconds. It returns
#: a description of the answer, and raises GRPCError, or ValidationError for an answer that the kubelet refuses.
CALLS: Final[dict[str, tuple[str, Callable[[Channel, float], Awaitable[str]]]]] = {
    CSI: ("NodeGetInfo", _node_get_info),
    DEVICE: ("GetDevicePluginOptions", _get_options),
}
