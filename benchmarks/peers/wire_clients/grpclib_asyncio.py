"""grpclib on asyncio: its generated stubs on its own channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from grpclib.client import Channel

from plugind.benchmarks.peers.wire_clients import Target, Work, check
from plugind.protocol.proto.pluginregistration_grpc import RegistrationStub
from plugind.protocol.proto.pluginregistration_pb2 import InfoRequest, RegistrationStatus


async def _worker(work: Work) -> None:
    while work:
        target = work.popleft()
        async with Channel(path=target.path) as channel:
            stub = RegistrationStub(channel)
            info = await stub.GetInfo(InfoRequest())
            check(target, info.name)
            await stub.NotifyRegistrationStatus(RegistrationStatus(plugin_registered=True))


async def _converse(work: Work, concurrency: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(_worker(work))


async def _hold(targets: Sequence[Target], measure: Callable[[], float]) -> float:
    async with AsyncExitStack() as stack:
        for target in targets:
            channel = await stack.enter_async_context(Channel(path=target.path))
            check(target, (await RegistrationStub(channel).GetInfo(InfoRequest())).name)
        return measure()


def converse(work: Work, concurrency: int) -> None:
    """See the package."""
    asyncio.run(_converse(work, concurrency))


def hold(targets: Sequence[Target], measure: Callable[[], float]) -> float:
    """See the package."""
    return asyncio.run(_hold(targets, measure))
