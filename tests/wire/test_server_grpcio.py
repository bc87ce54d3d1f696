"""Our server and the client of grpcio, an implementation that is not ours, which blocks a thread of the test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
import trio
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import BytesValue, Int32Value

from plugind.actors.grpc.server.serve import ServerLimits
from plugind.tests.wire.server_helpers import served

T = TypeVar("T")
SIZES = [0, 1, 16383, 16384, 16385, 65535, 65536, 65537, 4 * 1024 * 1024 - 16]
OPTIONS = [("grpc.max_receive_message_length", 8 << 20), ("grpc.max_send_message_length", 8 << 20)]


async def with_channel(path: str, work: Callable[[grpc.Channel], T]) -> T:
    """Run ``work`` on a channel of its own, in a thread, since grpcio blocks."""

    def run() -> T:
        with grpc.insecure_channel(f"unix:{path}", options=OPTIONS) as channel:
            return work(channel)

    return await trio.to_thread.run_sync(run)


def unary(channel: grpc.Channel, name: str, reply: type[Message]) -> grpc.UnaryUnaryMultiCallable:
    return channel.unary_unary(f"/test.Echo/{name}", lambda m: m.SerializeToString(), reply.FromString)


def failure(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


async def test_messages_of_awkward_sizes_arrive_whole_in_both_directions(tmp_path: Path) -> None:
    def work(channel: grpc.Channel) -> tuple[list[int], list[int]]:
        size, make = unary(channel, "size", Int32Value), unary(channel, "make", BytesValue)
        up = [size(BytesValue(value=b"u" * n), timeout=20).value for n in SIZES]
        down = [len(make(Int32Value(value=n), timeout=20).value) for n in SIZES]
        return up, down

    async with served(tmp_path / "s") as server:
        assert await with_channel(server.path, work) == (SIZES, SIZES)
        assert server.reports.failures == []


async def test_streams_in_each_direction_arrive_whole(tmp_path: Path) -> None:
    parts = [b"p" * n for n in (0, 1, 70000, 5)]

    def work(channel: grpc.Channel) -> tuple[list[int], int, list[bytes]]:
        count = channel.unary_stream("/test.Echo/count", Int32Value.SerializeToString, Int32Value.FromString)
        counted = [message.value for message in count(Int32Value(value=500), timeout=20)]
        total = channel.stream_unary("/test.Echo/total", BytesValue.SerializeToString, Int32Value.FromString)
        both = channel.stream_stream("/test.Echo/both", BytesValue.SerializeToString, BytesValue.FromString)
        asked = [BytesValue(value=part) for part in parts]
        return counted, total(iter(asked), timeout=20).value, [m.value for m in both(iter(asked), timeout=20)]

    async with served(tmp_path / "s") as server:
        assert await with_channel(server.path, work) == (list(range(500)), sum(map(len, parts)), parts)


async def test_many_calls_at_once_share_one_connection(tmp_path: Path) -> None:
    def work(channel: grpc.Channel) -> list[bytes]:
        echo = unary(channel, "unary", BytesValue)
        futures = [echo.future(BytesValue(value=b"%d" % n * 100), timeout=20) for n in range(300)]
        return [future.result().value for future in futures]

    async with served(tmp_path / "s") as server:
        # There are more calls than the limit of streams; grpcio queues what SETTINGS do not allow.
        assert await with_channel(server.path, work) == [b"%d" % n * 100 for n in range(300)]
        assert len(set(server.echo.peers)) == 1


async def test_every_status_code_reaches_the_client_with_its_message(tmp_path: Path) -> None:
    def work(channel: grpc.Channel) -> list[tuple[grpc.StatusCode, str]]:
        status = unary(channel, "status", Int32Value)
        return [failure(lambda n=n: status(Int32Value(value=n), timeout=20)) for n in range(1, 17)]  # type: ignore[misc]

    codes = {code.value[0]: code for code in grpc.StatusCode}
    async with served(tmp_path / "s") as server:
        seen = await with_channel(server.path, work)
    assert seen == [(codes[n], f"100 % ✓ of {n}\n") for n in range(1, 17)]


async def test_metadata_is_carried_in_both_directions_binary_values_included(tmp_path: Path) -> None:
    def work(channel: grpc.Channel) -> tuple[bytes, dict[str, object], dict[str, object]]:
        sent = (("a", "b"), ("a", "c"), ("z-bin", b"\x00\x01\xff"))
        reply, call = unary(channel, "metadata", BytesValue).with_call(BytesValue(), timeout=20, metadata=sent)
        return reply.value, dict(call.initial_metadata()), dict(call.trailing_metadata())

    async with served(tmp_path / "s") as server:
        seen, initial, trailing = await with_channel(server.path, work)
    assert seen == repr([("a", "b"), ("a", "c"), ("z-bin", b"\x00\x01\xff")]).encode()
    assert initial == {"first": "1", "first-bin": b"\x00\xff"}
    assert trailing == {"last": "2", "last-bin": b"\xff\x00\x01"}


async def test_a_cancelled_call_cancels_its_handler_and_no_other(tmp_path: Path) -> None:
    async with served(tmp_path / "s") as server:

        def work(channel: grpc.Channel) -> bytes:
            future = unary(channel, "hang", BytesValue).future(BytesValue(), timeout=20)
            trio.from_thread.run(server.echo.hanging.wait)
            future.cancel()
            return bytes(unary(channel, "unary", BytesValue)(BytesValue(value=b"next"), timeout=20).value)

        assert await with_channel(server.path, work) == b"next"
        await server.echo.cancelled.wait()


async def test_an_unknown_method_is_unimplemented(tmp_path: Path) -> None:
    """Fault 71, from the server's side."""

    def work(channel: grpc.Channel) -> tuple[grpc.StatusCode, str]:
        return failure(lambda: unary(channel, "nothing", BytesValue)(BytesValue(), timeout=20))

    async with served(tmp_path / "s") as server:
        expected = (grpc.StatusCode.UNIMPLEMENTED, "unknown method /test.Echo/nothing")
        assert await with_channel(server.path, work) == expected


async def test_a_message_over_the_limit_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    """Fault 50: the prefix is enough to refuse the message."""

    def work(channel: grpc.Channel) -> tuple[tuple[grpc.StatusCode, str], int]:
        size = unary(channel, "size", Int32Value)
        refused = failure(lambda: size(BytesValue(value=b"u" * 200000), timeout=20))
        return refused, size(BytesValue(value=b"u" * 900), timeout=20).value

    async with served(tmp_path / "s", ServerLimits(max_message=1000)) as server:
        (code, details), after = await with_channel(server.path, work)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details == "a message of 200004 bytes is over the limit of 1000"
        assert after == 900
        assert server.reports.failures == []


async def test_a_handler_that_raises_fails_only_its_own_call(tmp_path: Path) -> None:
    """Fault 81: the client does not see the exception; the report contains it."""

    def work(channel: grpc.Channel) -> tuple[tuple[grpc.StatusCode, str], bytes]:
        seen = failure(lambda: unary(channel, "broken", BytesValue)(BytesValue(), timeout=20))
        return seen, unary(channel, "unary", BytesValue)(BytesValue(value=b"next"), timeout=20).value

    async with served(tmp_path / "s") as server:
        seen = await with_channel(server.path, work)
        assert seen == ((grpc.StatusCode.UNKNOWN, "Internal Server Error"), b"next")
        (failed,) = server.reports.failures
        assert (failed.method, repr(failed.error)) == (
            "/test.Echo/broken",
            "RuntimeError('a secret that clients need not know')",
        )
