"""The read-only methods of a CSI driver from which a node learns its identity, capabilities, node and health.

Each method has a deadline. An answer longer than :data:`MAX_ANSWER` is refused before it is parsed, so that no objects
are made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import attrs
import trio
from google.protobuf.message import Message
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from ....protocol.handlers.csi import NODE_INFO_TIMEOUT, SHORT_TIMEOUT
from ....protocol.proto import csi_v1_pb2 as api
from ....protocol.wire.grpc import frame_message
from ...grpc.client.at_once import UnaryRequest
from ...grpc.client.channel import Channel
from ...grpc.client.stream import at_most

#: The largest answer, in bytes. The specification allows 4 KiB for its largest part.
MAX_ANSWER = 65_536

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


@attrs.frozen(eq=False)
class Method(Generic[Q, A]):
    """A method, its empty request, and the deadline of a call in seconds."""

    path: str
    request: Q
    reply: type[A]
    timeout: float
    #: The encoded request.
    sent: UnaryRequest

    @property
    def name(self) -> str:
        """The name without that of the service."""
        return self.path.rpartition("/")[2]


def _method(path: str, request: Q, reply: type[A], timeout: float = SHORT_TIMEOUT) -> Method[Q, A]:
    bounded = at_most(MAX_ANSWER, reply)
    return Method(path, request, bounded, timeout, UnaryRequest(path, frame_message(request.SerializeToString())))


GET_PLUGIN_INFO: Final = _method(
    "/csi.v1.Identity/GetPluginInfo", api.GetPluginInfoRequest(), api.GetPluginInfoResponse
)
GET_PLUGIN_CAPABILITIES: Final = _method(
    "/csi.v1.Identity/GetPluginCapabilities", api.GetPluginCapabilitiesRequest(), api.GetPluginCapabilitiesResponse
)
PROBE: Final = _method("/csi.v1.Identity/Probe", api.ProbeRequest(), api.ProbeResponse)
NODE_GET_CAPABILITIES: Final = _method(
    "/csi.v1.Node/NodeGetCapabilities", api.NodeGetCapabilitiesRequest(), api.NodeGetCapabilitiesResponse
)
NODE_GET_INFO: Final = _method(
    "/csi.v1.Node/NodeGetInfo", api.NodeGetInfoRequest(), api.NodeGetInfoResponse, NODE_INFO_TIMEOUT
)

AnyMethod = Method[Any, Any]
#: Receives each call that has ended: its method, its status, and its duration in seconds.
Counted = Callable[[AnyMethod, Status, float], None]


async def call(channel: Channel, method: Method[Q, A], timeout: float | None) -> A:
    """Call a method. Without a ``timeout``, the caller sets the deadline.

    Raises:
      GRPCError: if the call fails.
    """
    try:
        async with channel.request(
            method.path, Cardinality.UNARY_UNARY, type(method.request), method.reply, timeout=timeout
        ) as stream:
            await stream.send_message(method.request, end=True)
            answer = await stream.recv_message()
    except trio.ClosedResourceError as error:
        raise GRPCError(Status.UNAVAILABLE, CLOSED) from error
    assert answer is not None, "a unary call without an answer has raised"
    return answer


#: The error text when plugind closed the connection.
CLOSED: Final = "the connection to the endpoint was closed"


async def ask(channel: Channel, method: Method[Q, A], counted: Counted) -> A | GRPCError:
    """Call a method; return the answer, or the error with which the call failed."""
    began, code = trio.current_time(), Status.CANCELLED
    try:
        answer = await call(channel, method, method.timeout)
        code = Status.OK
        return answer
    except GRPCError as error:
        code = error.status
        return error
    finally:
        counted(method, code, trio.current_time() - began)
