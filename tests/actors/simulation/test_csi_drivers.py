"""The fake CSI driver: what it answers, what a script changes while it serves, and what it counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.grpc.server.serve import serve_stream
from plugind.actors.simulation.streams import memory_connection
from plugind.protocol.proto import csi_v1_pb2 as api
from plugind.protocol.proto.csi_v1_grpc import IdentityStub, NodeStub
from plugind.testing import CSICall, FakeCSIDriver, Reaction

NAME = "csi.example.com"


@attrs.frozen
class Caller:
    """Calls a driver as a node does."""

    channel: Channel

    async def __call__(self, call: CSICall, timeout: float = 5) -> object:
        identity, node = self.channel.stub(IdentityStub), self.channel.stub(NodeStub)
        match call:
            case CSICall.PLUGIN_INFO:
                return await identity.GetPluginInfo(api.GetPluginInfoRequest(), timeout=timeout)
            case CSICall.PLUGIN_CAPABILITIES:
                return await identity.GetPluginCapabilities(api.GetPluginCapabilitiesRequest(), timeout=timeout)
            case CSICall.PROBE:
                return await identity.Probe(api.ProbeRequest(), timeout=timeout)
            case CSICall.NODE_CAPABILITIES:
                return await node.NodeGetCapabilities(api.NodeGetCapabilitiesRequest(), timeout=timeout)
            case CSICall.NODE_INFO:
                return await node.NodeGetInfo(api.NodeGetInfoRequest(), timeout=timeout)


@asynccontextmanager
async def connected(driver: FakeCSIDriver) -> AsyncIterator[Caller]:
    made = memory_connection()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, [driver], made.server)
        async with Channel(made.client) as channel:
            yield Caller(channel)
        nursery.cancel_scope.cancel()


async def test_each_call_has_an_answer_and_is_counted(autojump_clock: trio.testing.MockClock) -> None:
    driver = FakeCSIDriver(NAME, node_id="node-7", max_volumes=16, topology={"zone": "z1"})
    async with connected(driver) as call:
        assert await call(CSICall.PLUGIN_INFO) == api.GetPluginInfoResponse(name=NAME, vendor_version="1.0.0")
        assert await call(CSICall.PROBE) == api.ProbeResponse()
        assert await call(CSICall.NODE_INFO) == api.NodeGetInfoResponse(
            node_id="node-7", max_volumes_per_node=16, accessible_topology=api.Topology(segments={"zone": "z1"})
        )
        assert await call(CSICall.PLUGIN_CAPABILITIES) == api.GetPluginCapabilitiesResponse(
            capabilities=[
                api.PluginCapability(service=api.PluginCapability.Service(type="CONTROLLER_SERVICE")),
                api.PluginCapability(service=api.PluginCapability.Service(type="VOLUME_ACCESSIBILITY_CONSTRAINTS")),
            ]
        )
        await trio.sleep(1)
        said = await call(CSICall.NODE_CAPABILITIES)
        assert isinstance(said, api.NodeGetCapabilitiesResponse)
        # STAGE_UNSTAGE_VOLUME, GET_VOLUME_STATS and EXPAND_VOLUME of the specification.
        assert [capability.rpc.type for capability in said.capabilities] == [1, 2, 3]
    assert driver.calls == [
        (0.0, CSICall.PLUGIN_INFO),
        (0.0, CSICall.PROBE),
        (0.0, CSICall.NODE_INFO),
        (0.0, CSICall.PLUGIN_CAPABILITIES),
        (1.0, CSICall.NODE_CAPABILITIES),
    ]
    assert (driver.called(CSICall.PROBE), driver.under_way, driver.most_at_once) == (1, 0, 1)


async def ending(call: Caller, which: CSICall, timeout: float = 5) -> tuple[float, Status | None]:
    began = trio.current_time()
    try:
        await call(which, timeout)
    except GRPCError as error:
        return trio.current_time() - began, error.status
    return trio.current_time() - began, None


@pytest.mark.parametrize("call", list(CSICall))
async def test_each_call_can_be_refused_delayed_and_left_without_an_answer(
    call: CSICall, autojump_clock: trio.testing.MockClock
) -> None:
    noted: list[tuple[CSICall, Reaction]] = []

    class Noting(FakeCSIDriver):
        def note(self, call: CSICall, peer: object, how: Reaction) -> None:
            noted.append((call, how))

    driver = Noting(NAME)
    async with connected(driver) as made:
        driver.delays[call] = 2
        assert await ending(made, call) == (2, None)
        driver.errors[call] = GRPCError(Status.FAILED_PRECONDITION, "not today")
        assert await ending(made, call) == (2, Status.FAILED_PRECONDITION)
        driver.hangs.add(call)
        assert await ending(made, call) == (5, Status.DEADLINE_EXCEEDED)
        await trio.sleep(0.1)
        assert driver.under_way == 0
        driver.hangs.clear()
        driver.errors.clear()
        driver.delays.clear()
        assert await ending(made, call) == (0, None)
    assert noted == [(call, how) for how in (Reaction.ANSWERED, Reaction.REFUSED, Reaction.HUNG, Reaction.ANSWERED)]
