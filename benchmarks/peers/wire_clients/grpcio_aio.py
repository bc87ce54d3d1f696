"""grpcio's asyncio API, with a channel for each conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import grpc.aio

from plugind.benchmarks.peers.wire_clients import Target, Work, check
from plugind.benchmarks.plugins.cheap_protocol import GET_INFO, NOTIFY
from plugind.protocol.proto.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)


async def _ask(channel: grpc.aio.Channel, target: Target) -> None:
    get_info = channel.unary_unary(
        GET_INFO, request_serializer=InfoRequest.SerializeToString, response_deserializer=PluginInfo.FromString
    )
    info = await get_info(InfoRequest())
    check(target, info.name)


async def _notify(channel: grpc.aio.Channel) -> None:
    notify = channel.unary_unary(
        NOTIFY,
        request_serializer=RegistrationStatus.SerializeToString,
        response_deserializer=RegistrationStatusResponse.FromString,
    )
    await notify(RegistrationStatus(plugin_registered=True))


async def _worker(work: Work) -> None:
    while work:
        target = work.popleft()
        async with grpc.aio.insecure_channel(f"unix:{target.path}") as channel:
            await _ask(channel, target)
            await _notify(channel)


async def _converse(work: Work, concurrency: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(_worker(work))


async def _hold(targets: Sequence[Target], measure: Callable[[], float]) -> float:
    async with AsyncExitStack() as stack:
        for target in targets:
            await _ask(await stack.enter_async_context(grpc.aio.insecure_channel(f"unix:{target.path}")), target)
        return measure()


def converse(work: Work, concurrency: int) -> None:
    """See the package."""
    asyncio.run(_converse(work, concurrency))


def hold(targets: Sequence[Target], measure: Callable[[], float]) -> float:
    """See the package."""
    return asyncio.run(_hold(targets, measure))
