"""A consumer of CSI drivers on grpcio's asyncio API, as one is written without plugind.

    python -m benchmarks.peers.csi_client SOCKET...

It prints a line once it could begin, and begins with a line on its standard input. It asks each driver, over a
connection of its own, what a node asks it at registration, and checks the answers as far as it must. Then it prints how
many drivers have answered, and keeps the connections until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

import attrs
import grpc.aio

from plugind.protocol.proto import csi_v1_pb2 as api

#: How many drivers are asked at once.
AT_ONCE = 64
IDENTITY, NODE = "/csi.v1.Identity/", "/csi.v1.Node/"


@attrs.frozen
class Facts:
    """What a driver has said."""

    name: str
    vendor_version: str
    plugin_capabilities: tuple[int, ...]
    node_capabilities: tuple[int, ...]
    node_id: str
    max_volumes: int
    topology: dict[str, str]


async def ask(channel: grpc.aio.Channel) -> Facts:
    """Make the four calls.

    Raises:
      ValueError: if the driver says no name, or nothing of the node.
      grpc.aio.AioRpcError: if a call fails.
    """
    info = await channel.unary_unary(
        f"{IDENTITY}GetPluginInfo",
        request_serializer=api.GetPluginInfoRequest.SerializeToString,
        response_deserializer=api.GetPluginInfoResponse.FromString,
    )(api.GetPluginInfoRequest(), timeout=5)
    of_driver = await channel.unary_unary(
        f"{IDENTITY}GetPluginCapabilities",
        request_serializer=api.GetPluginCapabilitiesRequest.SerializeToString,
        response_deserializer=api.GetPluginCapabilitiesResponse.FromString,
    )(api.GetPluginCapabilitiesRequest(), timeout=5)
    of_node = await channel.unary_unary(
        f"{NODE}NodeGetCapabilities",
        request_serializer=api.NodeGetCapabilitiesRequest.SerializeToString,
        response_deserializer=api.NodeGetCapabilitiesResponse.FromString,
    )(api.NodeGetCapabilitiesRequest(), timeout=5)
    node = await channel.unary_unary(
        f"{NODE}NodeGetInfo",
        request_serializer=api.NodeGetInfoRequest.SerializeToString,
        response_deserializer=api.NodeGetInfoResponse.FromString,
    )(api.NodeGetInfoRequest(), timeout=120)
    if not info.name or not node.node_id:
        raise ValueError("the driver says no name, or nothing of the node")
    return Facts(
        info.name,
        info.vendor_version,
        tuple([one.service.type for one in of_driver.capabilities]),
        tuple([one.rpc.type for one in of_node.capabilities]),
        node.node_id,
        node.max_volumes_per_node,
        dict(node.accessible_topology.segments),
    )


async def ask_all(channels: Sequence[grpc.aio.Channel]) -> list[Facts]:
    """Ask all drivers, some at once."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def in_turn(channel: grpc.aio.Channel) -> Facts:
        async with turn:
            return await ask(channel)

    return await asyncio.gather(*map(in_turn, channels))


async def run(paths: Sequence[str]) -> None:
    """Ask all drivers once told to, and keep the connections until the standard input ends."""
    print(json.dumps({"ready": len(paths)}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    channels = [grpc.aio.insecure_channel(f"unix:{path}") for path in paths]
    facts = await ask_all(channels)
    print(json.dumps({"answered": len(facts)}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await asyncio.gather(*(channel.close() for channel in channels))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1:]))
