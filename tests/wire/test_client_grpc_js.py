"""Our client against @grpc/grpc-js's server, in a process of its own: an implementation that we did not write."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from google.protobuf.wrappers_pb2 import BytesValue, Int32Value
from grpclib.client import StreamStreamMethod, StreamUnaryMethod, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.grpc.client.dial import dial
from plugind.protocol.wire.errors import WireError, WireProblem
from plugind.protocol.wire.hpack_cache import CACHE
from plugind.protocol.wire.limits import REGISTRATION_LIMITS, Limits
from plugind.tests.wire.hostile import budgets_used
from plugind.tests.wire.node import Node, node

pytestmark = pytest.mark.extended

SIZES = [0, 1, 16383, 16384, 16385, 65535, 65536, 65537, 4 * 1024 * 1024 - 16]


class Echo:
    """A stub of echo.proto in the form of generated ones."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

        def method(name: str) -> str:
            return f"/test.Echo/{name}"

        self.unary = channel.stub(lambda c: UnaryUnaryMethod(c, method("unary"), BytesValue, BytesValue))
        self.size = channel.stub(lambda c: UnaryUnaryMethod(c, method("size"), BytesValue, Int32Value))
        self.make = channel.stub(lambda c: UnaryUnaryMethod(c, method("make"), Int32Value, BytesValue))
        self.count = channel.stub(lambda c: UnaryStreamMethod(c, method("count"), Int32Value, Int32Value))
        self.total = channel.stub(lambda c: StreamUnaryMethod(c, method("total"), BytesValue, Int32Value))
        self.both = channel.stub(lambda c: StreamStreamMethod(c, method("both"), BytesValue, BytesValue))
        self.status = channel.stub(lambda c: UnaryUnaryMethod(c, method("status"), Int32Value, Int32Value))
        self.late = channel.stub(lambda c: UnaryStreamMethod(c, method("late_status"), Int32Value, Int32Value))
        self.metadata = channel.stub(lambda c: UnaryUnaryMethod(c, method("metadata"), BytesValue, BytesValue))
        self.hang = channel.stub(lambda c: UnaryUnaryMethod(c, method("hang"), BytesValue, BytesValue))
        self.kept_open = channel.stub(lambda c: UnaryStreamMethod(c, method("held"), Int32Value, Int32Value))
        self.missing = channel.stub(lambda c: UnaryUnaryMethod(c, "/test.Other/missing", BytesValue, BytesValue))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("node") / "s")


@pytest.fixture(scope="module")
def server(path: str) -> Iterator[Node]:
    """Share one process between all tests, since node takes longer to start than most calls take to end."""
    with node("server.js", path) as started:
        assert started.line() == {"listening": path}
        yield started


@asynccontextmanager
async def connected(path: str, limits: Limits | None = None) -> AsyncIterator[Echo]:
    with trio.fail_after(60):
        async with await dial(path, timeout=60, limits=limits or Limits()) as channel:
            yield Echo(channel)


async def test_messages_of_awkward_sizes_arrive_whole_in_both_directions(server: Node, path: str) -> None:
    async with connected(path) as echo:
        assert [(await echo.size(BytesValue(value=b"u" * size))).value for size in SIZES] == SIZES
        assert [len((await echo.make(Int32Value(value=size))).value) for size in SIZES] == SIZES


async def test_a_call_takes_a_tenth_of_its_budgets_at_most(server: Node, path: str) -> None:
    """Faults 53 to 64, and all of the largest message is within them too."""
    CACHE.clear()  # A response that is recognized whole is not counted.
    async with connected(path, REGISTRATION_LIMITS) as echo:
        assert len((await echo.make(Int32Value(value=100))).value) == 100
        assert 0 < max(budgets_used(echo.channel)) < 0.1
        assert len((await echo.make(Int32Value(value=65_000))).value) == 65_000
        assert max(budgets_used(echo.channel)) < 0.5


async def test_a_message_over_the_limit_is_refused_and_the_connection_goes_on(server: Node, path: str) -> None:
    """Fault 50: the prefix is enough to refuse the message."""
    async with connected(path, Limits(message_bytes=1000)) as echo:
        with pytest.raises(GRPCError) as caught:
            await echo.make(Int32Value(value=200_000))
        assert caught.value.status is Status.RESOURCE_EXHAUSTED
        assert len((await echo.make(Int32Value(value=900))).value) == 900


async def test_a_server_stream_arrives_in_order_and_ends_ok(server: Node, path: str) -> None:
    async with connected(path) as echo:
        assert [message.value for message in await echo.count(Int32Value(value=500))] == list(range(500))


async def test_client_streams_and_bidirectional_streams_work(server: Node, path: str) -> None:
    parts = [BytesValue(value=b"p" * size) for size in (0, 1, 70_000, 5)]
    async with connected(path) as echo:
        assert (await echo.total(parts)).value == 70_006
        async with echo.both.open() as stream:
            for part in parts:
                await stream.send_message(part)
                assert await stream.recv_message() == part
            await stream.end()
            assert await stream.recv_message() is None


async def test_many_calls_at_once_share_one_connection(server: Node, path: str) -> None:
    """More than the 100 streams that the server's SETTINGS allow: the rest wait for their turn."""
    async with connected(path) as echo:
        await echo.unary(BytesValue())
        assert await answers(echo, 300) == list(range(300))


async def test_many_calls_at_once_begin_a_connection(server: Node, path: str) -> None:
    """As above, before the server's SETTINGS have arrived; Node resets the streams over its limit."""
    async with connected(path) as echo:
        assert await answers(echo, 300) == list(range(300))


async def answers(echo: Echo, calls: int) -> list[int]:
    """Make ``calls`` calls at once, each with its own number; return the numbers in the answers, sorted."""
    seen: list[int] = []

    async def call(number: int) -> None:
        seen.append(int((await echo.unary(BytesValue(value=b"%d" % number), timeout=15)).value))

    async with trio.open_nursery() as nursery:
        for number in range(calls):
            nursery.start_soon(call, number)
    return sorted(seen)


async def test_every_status_arrives_with_its_message(server: Node, path: str) -> None:
    async with connected(path) as echo:
        for status in Status:
            if status is Status.OK:
                continue
            with pytest.raises(GRPCError) as caught:
                await echo.status(Int32Value(value=status.value))
            said = f"100 % ✓ of {status.value}\n"
            assert (caught.value.status, caught.value.message, caught.value.__cause__) == (status, said, None)


async def test_a_status_after_a_message_arrives_after_it(server: Node, path: str) -> None:
    async with connected(path) as echo:
        stream = echo.late.open()
        await stream.send_message(Int32Value(), end=True)
        assert await stream.recv_message() == Int32Value(value=1)
        with pytest.raises(GRPCError) as caught:
            await stream.recv_message()
    assert (caught.value.status, caught.value.message) == (Status.ABORTED, "after a message")


async def test_an_unknown_method_is_unimplemented(server: Node, path: str) -> None:
    """Fault 71."""
    async with connected(path) as echo:
        with pytest.raises(GRPCError) as caught:
            await echo.missing(BytesValue())
        assert (await echo.unary(BytesValue(value=b"next"))).value == b"next"
    assert caught.value.status is Status.UNIMPLEMENTED


async def test_metadata_goes_both_ways_binary_included(server: Node, path: str) -> None:
    sent: list[tuple[str, str | bytes]] = [("a", "b"), ("a", "c"), ("z-bin", b"\x00\x01\xff")]
    async with connected(path) as echo, echo.metadata.open(metadata=sent) as stream:
        await stream.send_message(BytesValue(), end=True)
        reply = await stream.recv_message()
        await stream.recv_trailing_metadata()
    assert reply is not None
    heard = [pair for pair in json.loads(reply.value) if pair[0] in ("a", "z-bin")]
    # Node joins the values of one key.
    assert heard == [["a", "b, c"], ["z-bin", {"hex": "0001ff"}]]
    assert stream.initial_metadata is not None
    assert stream.trailing_metadata is not None
    initial = [(key, value) for key, value in stream.initial_metadata.items() if key.startswith("first")]
    assert initial == [("first", "1"), ("first-bin", b"\x00\xff")]
    last = list(stream.trailing_metadata.items())
    assert last == [("last", "2"), ("last", "3"), ("last-bin", b"\xff\x00\x01")]


async def test_a_deadline_is_sent_to_the_server_and_ends_the_call_on_both_sides(server: Node, path: str) -> None:
    """Fault 32, grpc-timeout; the connection is usable afterwards."""
    async with connected(path) as echo:
        with pytest.raises(GRPCError) as caught:
            await echo.hang(BytesValue(), timeout=0.5)
        hanging = (await server.answer())["hanging"]
        assert isinstance(hanging, int)
        assert 0 < hanging <= 501
        assert await server.answer() == {"cancelled": "hang"}
        assert (await echo.unary(BytesValue(value=b"next"))).value == b"next"
    assert caught.value.status is Status.DEADLINE_EXCEEDED


async def test_cancelling_the_task_cancels_the_call_at_the_server(server: Node, path: str) -> None:
    """Trio's cancellation becomes RST_STREAM, and the connection stays usable."""
    async with connected(path) as echo:
        with trio.CancelScope() as scope:
            async with echo.kept_open.open() as stream:
                await stream.send_message(Int32Value(value=7), end=True)
                assert await stream.recv_message() == Int32Value(value=7)
                scope.cancel()
                await stream.recv_message()
        assert scope.cancelled_caught
        assert await server.answer() == {"cancelled": "held"}
        assert (await echo.unary(BytesValue(value=b"next"))).value == b"next"


async def test_a_server_that_shuts_down_finishes_the_calls_in_progress_and_accepts_no_more(tmp_path: Path) -> None:
    """GOAWAY in the middle."""
    path = str(tmp_path / "s")
    with node("server.js", path) as own:
        assert await own.answer() == {"listening": path}
        async with connected(path) as echo, echo.kept_open.open() as stream:
            await stream.send_message(Int32Value(value=7), end=True)
            assert await stream.recv_message() == Int32Value(value=7)
            own.order("shutdown")
            caught = await first_refusal(echo)
            own.order("release")
            assert [message.value async for message in stream] == [-1]
            # Node waits until its clients close; ours closes after GOAWAY.
            assert (await echo.channel.wait_closed()).problem is WireProblem.CLOSED
        assert await own.answer() == {"shut": "down"}
    assert caught.status is Status.UNAVAILABLE
    assert isinstance(caught.__cause__, WireError)
    assert caught.__cause__.problem is WireProblem.GOING_AWAY


async def first_refusal(echo: Echo) -> GRPCError:
    """Call until a call is refused."""
    while True:
        try:
            await echo.unary(BytesValue())
        except GRPCError as error:
            return error


async def test_a_server_that_is_killed_leaves_its_calls_unavailable(tmp_path: Path) -> None:
    """Fault 34."""
    path = str(tmp_path / "s")
    with node("server.js", path) as own:
        assert await own.answer() == {"listening": path}
        async with connected(path) as echo:
            stream = echo.kept_open.open()
            await stream.send_message(Int32Value(value=7), end=True)
            assert await stream.recv_message() == Int32Value(value=7)
            own.process.kill()
            with pytest.raises(GRPCError) as caught:
                await stream.recv_message()
    assert caught.value.status is Status.UNAVAILABLE
    assert isinstance(caught.value.__cause__, WireError)
    assert caught.value.__cause__.problem is WireProblem.CLOSED
