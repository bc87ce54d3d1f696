"""Both halves of our wire against nghttp2's tools, an implementation of HTTP/2 without gRPC."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, Int32Value
from grpclib.client import UnaryStreamMethod, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.grpc.client.dial import dial
from plugind.protocol.wire.errors import WireError, WireProblem
from plugind.protocol.wire.hpack_cache import CACHE
from plugind.protocol.wire.limits import REGISTRATION_LIMITS
from plugind.tests.wire.hostile import budgets_used
from plugind.tests.wire.nghttp2 import Nghttpd, nghttpd, run_tool, tcp_to
from plugind.tests.wire.server_helpers import Served, frame, message, served

pytestmark = pytest.mark.extended

SIZES = [0, 1, 16_383, 16_384, 16_385, 65_535, 65_536, 65_537, 4 * 1024 * 1024 - 16]
OK = "--trailer=grpc-status: 0"
GRPC = ["-H", ":method: POST", "-H", "te: trailers", "-H", "content-type: application/grpc"]


# Our client and nghttpd. A file that holds a framed message, its content type and a trailer make it a gRPC server.


@asynccontextmanager
async def files(directory: Path, *options: str, **content: bytes) -> AsyncIterator[tuple[Nghttpd, Channel]]:
    """Run nghttpd with these files (``name_grpc`` becomes ``name.grpc``), and a channel to it."""
    (directory / "files").mkdir()
    for name, data in content.items():
        (directory / "files" / name.replace("_", ".")).write_bytes(data)
    async with nghttpd(directory, *options) as server, await dial(server.path, timeout=60) as channel:
        yield server, channel


def unary(channel: Channel, path: str) -> UnaryUnaryMethod[BytesValue, BytesValue]:
    return channel.stub(lambda c: UnaryUnaryMethod(c, path, BytesValue, BytesValue))


async def failure(channel: Channel, path: str, request: bytes = b"") -> tuple[Status, str | None, WireProblem]:
    """Make a call that must fail; return its status, its message and the problem."""
    with pytest.raises(GRPCError) as caught:
        await unary(channel, path)(BytesValue(value=request))
    cause = caught.value.__cause__
    assert isinstance(cause, WireError)
    return caught.value.status, caught.value.message, cause.problem


@pytest.mark.parametrize("options", [[], ["-b255"], ["-w20", "-W24"], ["-p/65535.grpc=/1.grpc"]])
async def test_messages_of_every_size_go_both_ways(tmp_path: Path, options: list[str]) -> None:
    """With padded frames, with windows that the server enlarges, and with a push for clients that allow it."""
    content = {f"{size}_grpc": message(b"m" * size) for size in SIZES}
    async with files(tmp_path, OK, *options, **content) as (server, channel):
        for size in SIZES:
            reply = await unary(channel, f"/{size}.grpc")(BytesValue(value=b"u" * size))
            assert reply.value == b"m" * size
        assert "PUSH_PROMISE" not in server.logged()
        assert "GOAWAY" not in server.logged()
        assert "RST_STREAM" not in server.logged()


async def test_an_answer_takes_a_tenth_of_its_budgets_at_most(tmp_path: Path) -> None:
    """Faults 53 to 64."""
    CACHE.clear()  # A response that is recognized whole is not counted.
    async with (
        files(tmp_path, OK, "-b255", a_grpc=message(b"a" * 300)) as (server, _),
        await dial(server.path, timeout=60, limits=REGISTRATION_LIMITS) as channel,
    ):
        assert (await unary(channel, "/a.grpc")(BytesValue())).value == b"a" * 300
        assert 0 < max(budgets_used(channel)) < 0.1


async def test_an_answer_that_is_reset_before_its_trailers_is_not_a_success(tmp_path: Path) -> None:
    """nghttpd resets an early answer with NO_ERROR, and sends no trailers."""
    async with files(tmp_path, OK, "--early-response", a_grpc=message(b"early")) as (_, channel):
        ended = [await failure(channel, "/a.grpc", b"u" * 2_000_000) for _ in range(3)]
    assert ended == [(Status.INTERNAL, "the peer reset the call (NO_ERROR)", WireProblem.PROTOCOL)] * 3


async def test_the_reason_of_a_goaway_is_reported(tmp_path: Path) -> None:
    """The test injects a broken frame, upon which nghttpd sends GOAWAY and closes."""
    async with files(tmp_path, OK, a_grpc=message(b"x")) as (server, channel):
        await unary(channel, "/a.grpc")(BytesValue())
        channel.connection.outgoing += frame(8, bytes(4))
        status, said, _ = await failure(channel, "/a.grpc")
        assert "send GOAWAY" in server.logged()
    assert status is Status.UNAVAILABLE
    assert said is not None
    assert "PROTOCOL_ERROR" in said


async def test_a_server_that_is_killed_in_the_middle_of_a_stream_is_unavailable(tmp_path: Path) -> None:
    """Fault 34: the stream has more messages than the windows hold, so its end cannot have arrived before the kill."""
    async with files(tmp_path, OK, a_grpc=message(b"x" * 50_000) * 80) as (server, channel):
        method = channel.stub(lambda c: UnaryStreamMethod(c, "/a.grpc", Int32Value, BytesValue))
        stream = method.open()
        await stream.send_message(Int32Value(), end=True)
        assert await stream.recv_message() == BytesValue(value=b"x" * 50_000)
        server.process.kill()
        with pytest.raises(GRPCError) as caught:
            [_ async for _ in stream]
    assert caught.value.status is Status.UNAVAILABLE


# nghttp, h2load and our server.


async def still_serves(server: Served) -> None:
    """Another client is served, and no handler failed."""
    async with await dial(server.path, timeout=60) as channel:
        assert (await unary(channel, "/test.Echo/unary")(BytesValue(value=b"next"))).value == b"next"
    assert server.reports.failures == []


def received(out: str, field: str) -> list[str]:
    """Return the values of one header field in the order in which nghttp received them."""
    return re.findall(rf"recv \(stream_id=\d+\) {field}: (.*)", out)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id="priorities"),
        pytest.param(["--continuation"], id="continuation"),
        pytest.param(["-b200"], id="padding"),
        # Not both in one SETTINGS, as nghttp can: h2 keeps the last and omits the least (RFC 7541 section 4.2).
        pytest.param(["-c0"], id="no-header-table-of-its-own"),
        pytest.param(["-c8192"], id="large-header-table"),
        pytest.param(["--encoder-header-table-size=0"], id="no-header-table"),
        pytest.param(["--trailer=more: at the end", "--no-content-length"], id="trailers"),
        pytest.param(["-w10", "-W16"], id="small-windows"),
        pytest.param(["-H", "expect: 100-continue"], id="expect"),
    ],
)
async def test_every_way_to_send_a_request_gets_its_answer(tmp_path: Path, options: list[str]) -> None:
    """Ten calls at once with 70,000 bytes each, in both directions."""
    (tmp_path / "body").write_bytes(message(b"b" * 70_000))
    async with served(tmp_path / "s") as server, tcp_to(server.path) as port:
        url = f"http://127.0.0.1:{port}/test.Echo/unary"
        done = await run_tool("nghttp", "-nv", "-m10", "-d", str(tmp_path / "body"), *GRPC, *options, url)
        assert received(done.out, "grpc-status") == ["0"] * 10
        assert received(done.out, ":status") == ["200"] * 10
        assert "RST_STREAM" not in done.out
        await still_serves(server)
