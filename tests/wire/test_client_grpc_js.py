"""Our client against @grpc/grpc-js's server, in a process of its own: an implementation that we did not write."""

from __future__ import annotations

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
        self.total = channel.stub(lambda c: StreamUnaryMethod(c, method("total"), BytesValue, Int32Value))
        self.both = channel.stub(lambda c: StreamStreamMethod(c, method("both"), BytesValue, BytesValue))
        self.hang = channel.stub(lambda c: UnaryUnaryMethod(c, method("hang"), BytesValue, BytesValue))
        self.kept_open = channel.stub(lambda c: UnaryStreamMethod(c, method("held"), Int32Value, Int32Value))


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


async def test_many_calls_at_once_begin_a_connection(server: Node, path: str) -> None:
    """More than its SETTINGS will allow, which have not arrived yet; Node resets the streams over its limit."""
    seen: list[int] = []
    async with connected(path) as echo, trio.open_nursery() as nursery:

        async def call(number: int) -> None:
            seen.append(int((await echo.unary(BytesValue(value=b"%d" % number), timeout=15)).value))

        for number in range(300):
            nursery.start_soon(call, number)
    assert sorted(seen) == list(range(300))


async def test_a_deadline_is_sent_to_the_server_and_ends_the_call_on_both_sides(server: Node, path: str) -> None:
    """Fault 32: the header is grpc-timeout, and the connection is usable afterwards."""
    async with connected(path) as echo:
        with pytest.raises(GRPCError) as caught:
            await echo.hang(BytesValue(), timeout=0.5)
        hanging = (await server.answer())["hanging"]
        assert isinstance(hanging, int)
        assert 0 < hanging <= 501
        assert await server.answer() == {"cancelled": "hang"}
        assert (await echo.unary(BytesValue(value=b"next"))).value == b"next"
    assert caught.value.status is Status.DEADLINE_EXCEEDED


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
