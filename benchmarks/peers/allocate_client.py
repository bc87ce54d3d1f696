"""Bare calls of Allocate to one device plugin, as the least that a consumer does for a container.

    python -m benchmarks.peers.allocate_client grpcio-aio SOCKET

For each number on its standard input the process makes so many calls on its open channel, one after the other, and
prints a line of JSON with the seconds of CPU that they took. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial

import grpc.aio
import trio

from plugind.actors.grpc.client.dial import dial
from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as device
from plugind.protocol.proto.deviceplugin_v1beta1_grpc import DevicePluginStub

CLIENTS = ("grpcio-aio", "plugind")
_TIMEOUT = 30.0

Call = Callable[[device.AllocateRequest], Awaitable[device.AllocateResponse]]


def request_for(devices: int) -> device.AllocateRequest:
    """Return the request for one container with so many devices."""
    ids = [f"GPU-{number:08x}-4b5c-4f4e-9b1d-0123456789ab" for number in range(devices)]
    return device.AllocateRequest(container_requests=[device.ContainerAllocateRequest(devices_ids=ids)])


async def _measured(call: Call, calls: int) -> float:
    """Make so many calls, and return the seconds of CPU that they took.

    Raises:
      RuntimeError: if an answer is not of use.
    """
    request = request_for(1)
    began = time.process_time()
    for _ in range(calls):
        answer = await call(request)
        if len(answer.container_responses) != 1:
            raise RuntimeError(f"the plugin answered {answer}")
    return time.process_time() - began


async def _serve(call: Call, line: Callable[[], Awaitable[str]]) -> None:
    while text := await line():
        print(json.dumps({"cpu_s": await _measured(call, int(text))}), flush=True)


async def _grpcio_aio(path: str) -> None:
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        allocate = channel.unary_unary(
            "/v1beta1.DevicePlugin/Allocate",
            request_serializer=device.AllocateRequest.SerializeToString,
            response_deserializer=device.AllocateResponse.FromString,
        )
        await _serve(partial(allocate, timeout=_TIMEOUT), lambda: asyncio.to_thread(sys.stdin.readline))


async def _plugind(path: str) -> None:
    async with await dial(path, timeout=_TIMEOUT) as channel:
        allocate = channel.stub(DevicePluginStub).Allocate
        await _serve(partial(allocate, timeout=_TIMEOUT), lambda: trio.to_thread.run_sync(sys.stdin.readline))


def main(client: str, path: str) -> None:
    """Make calls until the standard input ends."""
    if client == "plugind":
        trio.run(_plugind, path)
    else:
        asyncio.run(_grpcio_aio(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
