"""The calls to a CSI driver by which a node learns who it is, what it can do, where it runs and how it is.

All of them only read. Each has a deadline, and an answer that is longer than :data:`MAX_ANSWER` is refused before any
of it is parsed: it would be made into objects only to be refused.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final, Generic, TypeVar, cast

import attrs
import trio
from google.protobuf.message import DecodeError, Message
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from ...protocol.consumer_messages import CallEnded, CallFamily
from ...protocol.csi import (
    NO_NODE_INFO,
    Capabilities,
    NodeInfo,
    NotKnown,
    NotReadyError,
    check_driver_name,
    checked_node_info,
)
from ...protocol.errors import PluginError
from ...protocol.plugins import Plugin
from ...protocol.proto import csi_v1_pb2 as api
from ...protocol.text import quoted
from ...protocol.wire.errors import WireError
from ...protocol.wire.outcomes import status_text
from ..io.grpc_client.channel import Channel

#: Seconds that the answer to each call may take. A driver may have to ask a cloud for the node.
SHORT_TIMEOUT = 5.0
NODE_INFO_TIMEOUT = 120.0
#: Bytes of an answer. The specification allows 4 KiB for its largest part.
MAX_ANSWER = 65_536
#: How many capabilities are looked at. The specification defines six.
_MAX_CAPABILITIES = 64

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

#: Takes each call that has ended.
Count = Callable[[CallEnded], None]


class _Bounded:
    """Stands for the class of an answer where that is parsed, and refuses one that is too long."""

    def __init__(self, parsed: type[Message]) -> None:
        self._parsed = parsed
        self.__name__ = parsed.__name__

    def FromString(self, message: bytes) -> Message:  # noqa: N802 - protobuf's name
        if len(message) > MAX_ANSWER:
            raise DecodeError(f"it has {len(message)} bytes, at most {MAX_ANSWER} are taken")
        return self._parsed.FromString(message)


@attrs.frozen
class _Method(Generic[Q, A]):
    """A method with its request, which says nothing."""

    path: str
    request: Q
    reply: type[A]


def _method(path: str, request: Q, reply: type[A]) -> _Method[Q, A]:
    # A call uses nothing of the type of its answer but what _Bounded has.
    return _Method(path, request, cast("type[A]", _Bounded(reply)))


_GET_PLUGIN_INFO: Final = _method(
    "/csi.v1.Identity/GetPluginInfo", api.GetPluginInfoRequest(), api.GetPluginInfoResponse
)
_GET_PLUGIN_CAPABILITIES: Final = _method(
    "/csi.v1.Identity/GetPluginCapabilities", api.GetPluginCapabilitiesRequest(), api.GetPluginCapabilitiesResponse
)
_PROBE: Final = _method("/csi.v1.Identity/Probe", api.ProbeRequest(), api.ProbeResponse)
_NODE_GET_CAPABILITIES: Final = _method(
    "/csi.v1.Node/NodeGetCapabilities", api.NodeGetCapabilitiesRequest(), api.NodeGetCapabilitiesResponse
)
_NODE_GET_INFO: Final = _method("/csi.v1.Node/NodeGetInfo", api.NodeGetInfoRequest(), api.NodeGetInfoResponse)


class DriverCalls:
    """Asks one driver. Each method makes one call, and raises :exc:`PluginError` with what the plugin is told of it."""

    def __init__(self, plugin: Plugin, count: Count, *, strict: bool = False) -> None:
        """Give ``count`` each call; if ``strict``, a driver must implement NodeGetInfo."""
        self._plugin = plugin
        self._count = count
        self._strict = strict

    async def get_plugin_info(self, channel: Channel) -> str:
        """Return the driver's own version, once it has said the name that its registrar gave."""
        said = await self._asked(channel, _GET_PLUGIN_INFO, SHORT_TIMEOUT)
        check_driver_name(said.name, self._plugin.name, self._plugin.endpoint)
        return said.vendor_version

    async def get_plugin_capabilities(self, channel: Channel) -> Capabilities:
        """Return what the driver can do as a whole; that it says nothing of that is no error."""
        try:
            said = await self._call(channel, _GET_PLUGIN_CAPABILITIES, SHORT_TIMEOUT)
        except GRPCError as error:
            return _without_capabilities(error)
        return tuple(map(_plugin_capability, islice(said.capabilities, _MAX_CAPABILITIES)))

    async def node_get_capabilities(self, channel: Channel) -> Capabilities:
        """Return what the driver can do on this node; that it says nothing of that is no error."""
        try:
            said = await self._call(channel, _NODE_GET_CAPABILITIES, SHORT_TIMEOUT)
        except GRPCError as error:
            return _without_capabilities(error)
        return tuple(map(_node_capability, islice(said.capabilities, _MAX_CAPABILITIES)))

    async def node_get_info(self, channel: Channel) -> NodeInfo:
        """Return what the driver says about this node, once it was checked."""
        try:
            said = await self._call(channel, _NODE_GET_INFO, NODE_INFO_TIMEOUT)
        except GRPCError as error:
            if error.status is Status.UNIMPLEMENTED and not self._strict:
                return NO_NODE_INFO
            raise self._failed(_NODE_GET_INFO, error, NODE_INFO_TIMEOUT) from error
        return checked_node_info(said.node_id, said.max_volumes_per_node, said.accessible_topology.segments)

    async def _asked(self, channel: Channel, method: _Method[Q, A], timeout: float) -> A:
        try:
            return await self._call(channel, method, timeout)
        except GRPCError as error:
            raise self._failed(method, error, timeout) from error

    def _failed(self, method: _Method[Q, A], error: GRPCError, timeout: float) -> PluginError:
        name = method.path.rpartition("/")[2]
        return PluginError(f"failed to get {name} from driver {quoted(self._plugin.name)}: {_words(error, timeout)}")

    async def _call(self, channel: Channel, method: _Method[Q, A], timeout: float) -> A:
        began, code = trio.current_time(), Status.CANCELLED
        try:
            answer = await _unary(channel, method, timeout)
            code = Status.OK
            return answer
        except GRPCError as error:
            code = error.status
            raise
        finally:
            seconds = trio.current_time() - began
            self._count(CallEnded(CallFamily.CSI, self._plugin.name, method.path, code.name, seconds))


async def probe(channel: Channel) -> None:
    """Ask a driver whether it is ready, as the check of its health, which has a deadline itself.

    Raises:
      NotReadyError: if it says that it is not ready.
      PluginError: if it says that it is in no state to work: the text is its own.
      GRPCError: if it does not answer the question.
    """
    try:
        said = await _unary(channel, _PROBE, None)
    except GRPCError as error:
        if error.status is Status.FAILED_PRECONDITION and error.message:
            raise PluginError(error.message) from error
        raise
    if said.HasField("ready") and not said.ready.value:
        raise NotReadyError


async def _unary(channel: Channel, method: _Method[Q, A], timeout: float | None) -> A:
    try:
        async with channel.request(
            method.path, Cardinality.UNARY_UNARY, type(method.request), method.reply, timeout=timeout
        ) as stream:
            await stream.send_message(method.request, end=True)
            answer = await stream.recv_message()
    except trio.ClosedResourceError as error:
        raise GRPCError(Status.UNAVAILABLE, "the connection to the endpoint was closed") from error
    assert answer is not None, "a unary call without an answer has raised"
    return answer


def _words(error: GRPCError, timeout: float) -> str:
    if error.status is Status.DEADLINE_EXCEEDED and not isinstance(error.__cause__, WireError):
        return f"no answer within {timeout:g} s"
    return status_text(error)


def _without_capabilities(error: GRPCError) -> Capabilities:
    return () if error.status is Status.UNIMPLEMENTED else NotKnown(_words(error, SHORT_TIMEOUT))


#: The names that the specification has for capabilities. What a newer one defines is shown as its number.
_SERVICES: Final = {number: name for name, number in api.PluginCapability.Service.Type.items()}
_EXPANSIONS: Final = {number: name for name, number in api.PluginCapability.VolumeExpansion.Type.items()}
_RPCS: Final = {number: name for name, number in api.NodeServiceCapability.RPC.Type.items()}


def _plugin_capability(said: api.PluginCapability) -> str:
    if said.HasField("volume_expansion"):
        expansion = said.volume_expansion.type
        return f"{_EXPANSIONS.get(expansion, expansion)}_VOLUME_EXPANSION"
    return str(_SERVICES.get(said.service.type, said.service.type))


def _node_capability(said: api.NodeServiceCapability) -> str:
    return str(_RPCS.get(said.rpc.type, said.rpc.type))
