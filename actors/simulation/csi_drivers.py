"""A fake CSI driver that a script controls: its identity, capabilities and health, and faults of its calls."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, TypeVar, cast

import trio
from google.protobuf.message import Message
from grpclib.const import Handler as Method
from grpclib.exceptions import GRPCError

from ...protocol.proto import csi_v1_pb2 as api
from ...protocol.proto.csi_v1_grpc import IdentityBase, NodeBase
from .reactions import Reaction

if TYPE_CHECKING:
    from grpclib.server import Stream

#: The request and the answer of a call.
Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


class CSICall(enum.StrEnum):
    """The calls of a node to a CSI driver."""

    PLUGIN_INFO = "GetPluginInfo"
    PLUGIN_CAPABILITIES = "GetPluginCapabilities"
    PROBE = "Probe"
    NODE_CAPABILITIES = "NodeGetCapabilities"
    NODE_INFO = "NodeGetInfo"


class FakeCSIDriver(IdentityBase, NodeBase):
    """The services ``csi.v1.Identity`` and ``csi.v1.Node`` of the driver ``name``, in memory or on a real socket.

    All public attributes can be changed while it serves. No method for scripts waits. If several faults of one call are
    set, it hangs rather than fails.
    """

    def __init__(
        self,
        name: str,
        *,
        node_id: str = "node-1",
        max_volumes: int = 0,
        topology: Mapping[str, str] | None = None,
    ) -> None:
        #: The answer to GetPluginInfo.
        self.name = name
        self.vendor_version = "1.0.0"
        self.manifest: dict[str, str] = {}
        #: The answer to GetPluginCapabilities: services by their names in the .proto, and ``ONLINE`` or ``OFFLINE``.
        self.plugin_capabilities: Collection[str] = ("CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS")
        #: The answer to NodeGetCapabilities, by the names in the .proto.
        self.node_capabilities: Collection[str] = ("STAGE_UNSTAGE_VOLUME", "GET_VOLUME_STATS", "EXPAND_VOLUME")
        #: The answer to Probe. With None, the answer leaves the field out, which means ready.
        self.ready: bool | None = None
        #: The answer to NodeGetInfo.
        self.node_id = node_id
        self.max_volumes = max_volumes
        self.topology = dict(topology or {})
        #: The errors with which calls end, the calls that are never answered, and seconds before an answer or an error.
        self.errors: dict[CSICall, GRPCError] = {}
        self.hangs: set[CSICall] = set()
        self.delays: dict[CSICall, float] = {}
        #: Answers that replace those from the attributes above.
        self.answers: dict[CSICall, Message] = {}
        #: The calls that came, in order, each with the time of Trio's clock.
        self.calls: list[tuple[float, CSICall]] = []
        #: How many calls are under way, and the most that were at once.
        self.under_way = 0
        self.most_at_once = 0

    def called(self, call: CSICall) -> int:
        """Return how often ``call`` came."""
        return sum(one is call for _, one in self.calls)

    # --- the services -------------------------------------------------------------------------------------------------

    def __mapping__(self) -> dict[str, Method]:
        """The methods of both services."""
        return {**IdentityBase.__mapping__(self), **NodeBase.__mapping__(self)}

    async def GetPluginInfo(  # noqa: N802 - the name in the .proto, as below
        self, stream: Stream[api.GetPluginInfoRequest, api.GetPluginInfoResponse]
    ) -> None:
        """Answer with the driver's identity, or misbehave."""
        await self._react(CSICall.PLUGIN_INFO, stream, self._plugin_info)

    async def GetPluginCapabilities(  # noqa: N802
        self, stream: Stream[api.GetPluginCapabilitiesRequest, api.GetPluginCapabilitiesResponse]
    ) -> None:
        """Answer with the capabilities of the driver, or misbehave."""
        await self._react(CSICall.PLUGIN_CAPABILITIES, stream, self._plugin_capabilities)

    async def Probe(self, stream: Stream[api.ProbeRequest, api.ProbeResponse]) -> None:  # noqa: N802
        """Answer whether the driver is ready, or misbehave."""
        await self._react(CSICall.PROBE, stream, self._probe)

    async def NodeGetCapabilities(  # noqa: N802
        self, stream: Stream[api.NodeGetCapabilitiesRequest, api.NodeGetCapabilitiesResponse]
    ) -> None:
        """Answer with the capabilities on this node, or misbehave."""
        await self._react(CSICall.NODE_CAPABILITIES, stream, self._node_capabilities)

    async def NodeGetInfo(  # noqa: N802
        self, stream: Stream[api.NodeGetInfoRequest, api.NodeGetInfoResponse]
    ) -> None:
        """Answer with the facts about the node, or misbehave."""
        await self._react(CSICall.NODE_INFO, stream, self._node_info)

    # --- the answers --------------------------------------------------------------------------------------------------

    def _plugin_info(self) -> api.GetPluginInfoResponse:
        return api.GetPluginInfoResponse(name=self.name, vendor_version=self.vendor_version, manifest=self.manifest)

    def _plugin_capabilities(self) -> api.GetPluginCapabilitiesResponse:
        return api.GetPluginCapabilitiesResponse(capabilities=map(_plugin_capability, self.plugin_capabilities))

    def _probe(self) -> api.ProbeResponse:
        return api.ProbeResponse() if self.ready is None else api.ProbeResponse(ready={"value": self.ready})

    def _node_capabilities(self) -> api.NodeGetCapabilitiesResponse:
        return api.NodeGetCapabilitiesResponse(capabilities=map(_node_capability, self.node_capabilities))

    def _node_info(self) -> api.NodeGetInfoResponse:
        topology = api.Topology(segments=self.topology) if self.topology else None
        return api.NodeGetInfoResponse(
            node_id=self.node_id, max_volumes_per_node=self.max_volumes, accessible_topology=topology
        )

    # --- the reactions ------------------------------------------------------------------------------------------------

    async def _react(self, call: CSICall, stream: Stream[Q, A], answer: Callable[[], A]) -> None:
        await stream.recv_message()
        self.calls.append((trio.current_time(), call))
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            await self._perform(call, stream, answer)
        finally:
            self.under_way -= 1

    async def _perform(self, call: CSICall, stream: Stream[Q, A], answer: Callable[[], A]) -> None:
        hangs, error = call in self.hangs, self.errors.get(call)
        refused_or_not = Reaction.ANSWERED if error is None else Reaction.REFUSED
        self.note(call, stream.peer, Reaction.HUNG if hangs else refused_or_not)
        if hangs:
            # The client's deadline, or the end of the connection, ends the call's scope.
            await trio.sleep_forever()
        await trio.sleep(self.delays.get(call, 0.0))
        if error is not None:
            raise error
        scripted = self.answers.get(call)
        await stream.send_message(answer() if scripted is None else cast("A", scripted))

    def note(self, call: CSICall, peer: object, how: Reaction) -> None:
        """Note a call, and the reaction to it; subclasses can override this."""


def _plugin_capability(name: str) -> api.PluginCapability:
    if name in ("ONLINE", "OFFLINE"):
        return api.PluginCapability(volume_expansion={"type": name})
    return api.PluginCapability(service={"type": name})


def _node_capability(name: str) -> api.NodeServiceCapability:
    return api.NodeServiceCapability(rpc={"type": name})
