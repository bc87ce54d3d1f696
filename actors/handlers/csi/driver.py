"""The questions to a CSI driver and the checks of its answers: identity, capabilities, node and health.

The calls themselves are in :mod:`.methods`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

import attrs
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ....protocol.errors import PluginError
from ....protocol.handlers.csi import (
    NO_NODE_INFO,
    SHORT_TIMEOUT,
    Capabilities,
    DriverNotReadyError,
    NodeInfo,
    NotKnown,
    check_driver_name,
    checked_node_info,
)
from ....protocol.messages.consumers import CallEnded, CallFamily
from ....protocol.plugins.info import Plugin
from ....protocol.proto import csi_v1_pb2 as api
from ....protocol.text import quoted
from ....protocol.wire.errors import WireError
from ....protocol.wire.outcomes import status_text
from ...grpc.client.channel import Channel
from .at_once import AskedAtOnce
from .methods import (
    GET_PLUGIN_CAPABILITIES,
    GET_PLUGIN_INFO,
    NODE_GET_CAPABILITIES,
    NODE_GET_INFO,
    PROBE,
    AnyMethod,
    ask,
    call,
)

#: How many capabilities are read. The specification defines six.
_MAX_CAPABILITIES = 64

Count = Callable[[CallEnded], None]


#: The calls that register a driver, in the order in which the answers are examined.
_REGISTER: Final = (GET_PLUGIN_INFO, GET_PLUGIN_CAPABILITIES, NODE_GET_CAPABILITIES, NODE_GET_INFO)


@attrs.frozen
class Said:
    """A driver's answers at its registration."""

    vendor_version: str
    of_driver: Capabilities
    of_node: Capabilities
    node: NodeInfo


class DriverCalls:
    """Calls one driver. Each method but :meth:`ask` makes one call.

    A failure is raised as :exc:`PluginError`, with the text that the plugin gets.
    """

    def __init__(self, plugin: Plugin, count: Count, *, strict: bool = False) -> None:
        """Pass each ended call to ``count``. If ``strict``, a driver must implement NodeGetInfo."""
        self.plugin = plugin
        self._count = count
        self._strict = strict

    async def ask(self, channel: Channel) -> Said:
        """Make all calls that register the driver, at once.

        The answers are examined in the order of the calls. The first answer that refuses the driver ends the other
        calls.
        """
        with AskedAtOnce(channel, _REGISTER, self._counted) as asked:
            return Said(
                self.vendor_version(await asked.answer(GET_PLUGIN_INFO)),
                _of_driver(await asked.answer(GET_PLUGIN_CAPABILITIES)),
                _of_node(await asked.answer(NODE_GET_CAPABILITIES)),
                self.node_info(await asked.answer(NODE_GET_INFO)),
            )

    async def get_plugin_info(self, channel: Channel) -> str:
        """Return the driver's own version, after checking that its name is the one that its registrar gave."""
        return self.vendor_version(await ask(channel, GET_PLUGIN_INFO, self._counted))

    async def get_plugin_capabilities(self, channel: Channel) -> Capabilities:
        """Return the capabilities of the whole driver; a driver that does not answer is no error."""
        return _of_driver(await ask(channel, GET_PLUGIN_CAPABILITIES, self._counted))

    async def node_get_capabilities(self, channel: Channel) -> Capabilities:
        """Return the capabilities of the driver on this node; a driver that does not answer is no error."""
        return _of_node(await ask(channel, NODE_GET_CAPABILITIES, self._counted))

    async def node_get_info(self, channel: Channel) -> NodeInfo:
        """Return the checked answer of the driver about this node."""
        return self.node_info(await ask(channel, NODE_GET_INFO, self._counted))

    def _counted(self, method: AnyMethod, status: Status, seconds: float) -> None:
        self._count(CallEnded(CallFamily.CSI, self.plugin.name, method.path, status.name, seconds))

    def vendor_version(self, said: api.GetPluginInfoResponse | GRPCError) -> str:
        """Return the version in the answer to GetPluginInfo; raise an error if the driver is refused."""
        if isinstance(said, GRPCError):
            raise self._failed(GET_PLUGIN_INFO, said) from said
        check_driver_name(said.name, self.plugin.name, self.plugin.endpoint)
        return said.vendor_version

    def node_info(self, said: api.NodeGetInfoResponse | GRPCError) -> NodeInfo:
        """Return the checked answer to NodeGetInfo; raise an error if the driver is refused."""
        if not isinstance(said, GRPCError):
            return checked_node_info(said.node_id, said.max_volumes_per_node, said.accessible_topology.segments)
        if said.status is Status.UNIMPLEMENTED and not self._strict:
            return NO_NODE_INFO
        raise self._failed(NODE_GET_INFO, said) from said

    def _failed(self, method: AnyMethod, error: GRPCError) -> PluginError:
        words = _words(error, method.timeout)
        return PluginError(f"failed to get {method.name} from driver {quoted(self.plugin.name)}: {words}")


async def probe(channel: Channel) -> None:
    """Ask a driver whether it is ready. The caller sets the deadline.

    Raises:
      DriverNotReadyError: if the driver is not ready.
      PluginError: if the driver reports a failed precondition; the text is its own.
      GRPCError: if the call fails otherwise.
    """
    try:
        said = await call(channel, PROBE, None)
    except GRPCError as error:
        if error.status is Status.FAILED_PRECONDITION and error.message:
            raise PluginError(error.message) from error
        raise
    if said.HasField("ready") and not said.ready.value:
        raise DriverNotReadyError


def _words(error: GRPCError, timeout: float) -> str:
    if error.status is Status.DEADLINE_EXCEEDED and not isinstance(error.__cause__, WireError):
        return f"no answer within {timeout:g} s"
    return status_text(error)


def _of_driver(said: api.GetPluginCapabilitiesResponse | GRPCError) -> Capabilities:
    if isinstance(said, GRPCError):
        return _no_capabilities(said)
    return tuple(map(_plugin_capability, islice(said.capabilities, _MAX_CAPABILITIES)))


def _of_node(said: api.NodeGetCapabilitiesResponse | GRPCError) -> Capabilities:
    if isinstance(said, GRPCError):
        return _no_capabilities(said)
    return tuple(map(_node_capability, islice(said.capabilities, _MAX_CAPABILITIES)))


def _no_capabilities(error: GRPCError) -> Capabilities:
    return () if error.status is Status.UNIMPLEMENTED else NotKnown(_words(error, SHORT_TIMEOUT))


#: The specification's names of capabilities. A capability of a newer specification is shown as its number.
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
