"""The lowest possible cost of a client on Trio: its system calls and waits, with prepared bytes and without parsing.

An answer counts as complete when its last bytes have arrived; nothing else is checked. The module shares no code with
plugind's own client, not even for sockets, since that client is measured against it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence

import hpack
import trio

from plugind.benchmarks.peers.wire_clients import Target, Work, WrongAnswer
from plugind.benchmarks.plugins.cheap_protocol import (
    GET_INFO,
    NOTIFY,
    PREFACE,
    SETTINGS,
    SETTINGS_ACK,
    frame,
    success,
)
from plugind.protocol.proto.pluginregistration_pb2 import InfoRequest, RegistrationStatus


def _request(stream: int, path: str, message: bytes) -> bytes:
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "floor"),
    ]
    # A sensitive field is never indexed, so the block can be used on every connection.
    block = hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(*field) for field in fields])
    return frame(1, 0x4, stream, block) + frame(0, 0x1, stream, struct.pack(">BL", 0, len(message)) + message)


_FIRST = PREFACE + SETTINGS + _request(1, GET_INFO, InfoRequest().SerializeToString())
_SECOND = SETTINGS_ACK + _request(3, NOTIFY, RegistrationStatus(plugin_registered=True).SerializeToString())
_FIRST_END = success(1, b"")[-24:]
_SECOND_END = success(3, b"")[-24:]


async def _answer(connection: socket.socket, end: bytes) -> None:
    answer = b""
    while not answer.endswith(end):
        await trio.lowlevel.wait_readable(connection)
        received = connection.recv(65536)
        if not received:
            raise WrongAnswer("the plugin closed in the middle of an answer")
        answer += received


async def _worker(work: Work) -> None:
    while work:
        target = work.popleft()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            connection.connect(target.path)
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            connection.send(_FIRST)
            await _answer(connection, _FIRST_END)
            connection.send(_SECOND)
            await _answer(connection, _SECOND_END)
        finally:
            connection.close()


async def _converse(work: Work, concurrency: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(concurrency):
            nursery.start_soon(_worker, work)


def converse(work: Work, concurrency: int) -> None:
    """See the package."""
    trio.run(_converse, work, concurrency)


def hold(targets: Sequence[Target], measure: Callable[[], float]) -> float:
    """Open bare connected sockets."""
    connections = []
    for target in targets:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(target.path)
        connections.append(connection)
    try:
        return measure()
    finally:
        for connection in connections:
            connection.close()
