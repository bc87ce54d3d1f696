"""grpcio's blocking API, with a thread and a channel for each conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import grpc

from plugind.benchmarks.peers.wire_clients import Target, Work, check
from plugind.benchmarks.plugins.cheap_protocol import GET_INFO, NOTIFY
from plugind.protocol.proto.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)


def _ask(channel: grpc.Channel, target: Target) -> None:
    get_info = channel.unary_unary(
        GET_INFO, request_serializer=InfoRequest.SerializeToString, response_deserializer=PluginInfo.FromString
    )
    check(target, get_info(InfoRequest()).name)


def _notify(channel: grpc.Channel) -> None:
    notify = channel.unary_unary(
        NOTIFY,
        request_serializer=RegistrationStatus.SerializeToString,
        response_deserializer=RegistrationStatusResponse.FromString,
    )
    notify(RegistrationStatus(plugin_registered=True))


def _worker(work: Work) -> None:
    while True:
        try:
            target = work.popleft()
        except IndexError:  # Another thread took the last one.
            return
        with grpc.insecure_channel(f"unix:{target.path}") as channel:
            _ask(channel, target)
            _notify(channel)


def converse(work: Work, concurrency: int) -> None:
    """See the package."""
    with ThreadPoolExecutor(concurrency) as pool:
        for worker in [pool.submit(_worker, work) for _ in range(concurrency)]:
            worker.result()


def hold(targets: Sequence[Target], measure: Callable[[], float]) -> float:
    """See the package."""
    with ExitStack() as stack:
        for target in targets:
            _ask(stack.enter_context(grpc.insecure_channel(f"unix:{target.path}")), target)
        return measure()
