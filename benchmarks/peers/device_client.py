"""A consumer of device plugins on grpcio's asyncio API, as one is written without plugind.

    python -m benchmarks.peers.device_client SOCKET...

It asks each plugin for its options, follows its lists, and knows of each device whether it is healthy, on which NUMA
nodes it is, and since when. It ends with its standard input, and then prints how many lists have come.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence

import grpc.aio

from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as device

SERVICE = "/v1beta1.DevicePlugin/"

#: Of each device: whether it is healthy, its NUMA nodes, and when its health became what it is.
Devices = dict[str, tuple[bool, tuple[int, ...], float]]


def applied(before: Devices, said: device.ListAndWatchResponse, now: float) -> Devices:
    """Return the devices after a list."""
    devices: Devices = {}
    for one in said.devices:
        name, healthy = one.ID, one.health == "Healthy"
        was = before.get(name)
        since = was[2] if was is not None and was[0] == healthy else now
        devices[name] = healthy, tuple([node.ID for node in one.topology.nodes]), since
    return devices


async def follow(path: str) -> int:
    """Follow one plugin until cancelled; return how many lists have come."""
    count, devices = 0, Devices()
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        options = channel.unary_unary(
            f"{SERVICE}GetDevicePluginOptions",
            request_serializer=device.Empty.SerializeToString,
            response_deserializer=device.DevicePluginOptions.FromString,
        )
        await options(device.Empty(), timeout=5)
        watch = channel.unary_stream(
            f"{SERVICE}ListAndWatch",
            request_serializer=device.Empty.SerializeToString,
            response_deserializer=device.ListAndWatchResponse.FromString,
        )
        try:
            async for said in watch(device.Empty()):
                devices = applied(devices, said, time.monotonic())
                count += 1
        except asyncio.CancelledError:
            return count
    return count


async def run(paths: Sequence[str]) -> None:
    """Follow all plugins until the standard input ends."""
    tasks = [asyncio.create_task(follow(path)) for path in paths]
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    counts = await asyncio.gather(*tasks)
    print(json.dumps({"lists": sum(counts)}), flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1:]))
