"""plugind's channel for registrations, as the daemon uses it. Each task processes one socket after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import trio

from plugind.actors.grpc.client.dial import dial_registration
from plugind.actors.grpc.client.registration_channel import RegistrationChannel
from plugind.benchmarks.peers.wire_clients import Target, Work, check
from plugind.benchmarks.plugins.cheap_protocol import GET_INFO, NOTIFY
from plugind.protocol.proto.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from plugind.protocol.wire.learning import KnownConversations

_DIAL_TIMEOUT = 10.0
_CONVERSATIONS = KnownConversations()


async def _dial(target: Target) -> RegistrationChannel:
    return await dial_registration(target.path, timeout=_DIAL_TIMEOUT, conversations=_CONVERSATIONS)


async def _ask(channel: RegistrationChannel, target: Target) -> None:
    info = await channel.unary(GET_INFO, InfoRequest(), PluginInfo)
    check(target, info.name)


async def _worker(work: Work) -> None:
    while work:
        target = work.popleft()
        channel = await _dial(target)
        try:
            await _ask(channel, target)
            await channel.unary(NOTIFY, RegistrationStatus(plugin_registered=True), RegistrationStatusResponse)
        finally:
            channel.close()


async def _converse(work: Work, concurrency: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(concurrency):
            nursery.start_soon(_worker, work)


async def _hold(targets: Sequence[Target], measure: Callable[[], float]) -> float:
    with ExitStack() as stack:
        for target in targets:
            channel = await _dial(target)
            stack.callback(channel.close)
            await _ask(channel, target)
        return measure()


def converse(work: Work, concurrency: int) -> None:
    """See the package."""
    trio.run(_converse, work, concurrency)


def hold(targets: Sequence[Target], measure: Callable[[], float]) -> float:
    """See the package."""
    return trio.run(_hold, targets, measure)
