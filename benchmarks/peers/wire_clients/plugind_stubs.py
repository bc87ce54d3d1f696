"""plugind's channel on Trio with grpclib's unmodified generated stubs. Each task processes one socket after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import trio

from plugind.actors.grpc.client.dial import dial
from plugind.benchmarks.peers.wire_clients import Target, Work, check
from plugind.protocol.proto.pluginregistration_grpc import RegistrationStub
from plugind.protocol.proto.pluginregistration_pb2 import InfoRequest, RegistrationStatus

_DIAL_TIMEOUT = 10.0


async def _worker(work: Work) -> None:
    while work:
        target = work.popleft()
        async with await dial(target.path, timeout=_DIAL_TIMEOUT) as channel:
            stub = channel.stub(RegistrationStub)
            info = await stub.GetInfo(InfoRequest())
            check(target, info.name)
            await stub.NotifyRegistrationStatus(RegistrationStatus(plugin_registered=True))


async def _converse(work: Work, concurrency: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(concurrency):
            nursery.start_soon(_worker, work)


async def _hold(targets: Sequence[Target], measure: Callable[[], float]) -> float:
    with ExitStack() as stack:
        for target in targets:
            channel = await dial(target.path, timeout=_DIAL_TIMEOUT)
            stack.callback(channel.close)
            check(target, (await channel.stub(RegistrationStub).GetInfo(InfoRequest())).name)
        return measure()


def converse(work: Work, concurrency: int) -> None:
    """See the package."""
    trio.run(_converse, work, concurrency)


def hold(targets: Sequence[Target], measure: Callable[[], float]) -> float:
    """See the package."""
    return trio.run(_hold, targets, measure)
