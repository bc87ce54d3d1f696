"""Plugins that answer wrongly, too much or not at all: each kind of failure reaches the caller of a channel.

Which bytes fail with which reason: ``tests/protocol/wire``.
"""

import struct
from pathlib import Path

import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.protocol.proto.example_v1beta1_grpc import ExampleStub
from plugind.protocol.proto.example_v1beta1_pb2 import ExampleRequest
from plugind.protocol.wire.errors import ErrorCode, WireProblem
from plugind.protocol.wire.frames import (
    PING,
    RST_STREAM,
    SETTINGS,
    frame,
)
from plugind.tests.wire.hostile import (
    HELLO,
    INFO,
    Script,
    answer,
    asking,
    both_ways,
    connected,
    data,
    fields,
    get_info,
    goaway,
    headers,
    message,
    refused,
    sends,
    sends_and_closes,
    sends_forever,
    trailers,
)

__all__ = ["both_ways"]

pytestmark = pytest.mark.usefixtures("both_ways")

PROTOCOL, CLOSED = WireProblem.PROTOCOL, WireProblem.CLOSED


async def silence(stream: trio.SocketStream) -> None:
    """Read everything and send nothing."""
    while await stream.receive_some():
        pass


async def closes_at_once(stream: trio.SocketStream) -> None:
    del stream


async def closes_its_sending_side(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.send_all(HELLO)
    await stream.send_eof()
    await silence(stream)


UNIMPLEMENTED = fields(
    (":status", "200"),
    ("content-type", "application/grpc"),
    ("grpc-status", "12"),
    ("grpc-message", "unknown%20service"),
)
IN_TIME = "the deadline of the call passed"


@pytest.mark.parametrize(
    ("script", "timeout", "status", "problem", "reason"),
    [
        pytest.param(silence, 0.05, "DEADLINE_EXCEEDED", None, IN_TIME, id="fault 32: silence"),
        # The close may be noticed while sending or while receiving.
        pytest.param(closes_at_once, 60, "UNAVAILABLE", CLOSED, "", id="fault 33: a close"),
        pytest.param(
            sends_and_closes(HELLO + headers(1) + data(1, message(b""))),
            *(60, "UNAVAILABLE", CLOSED, "the peer closed the connection"),
            id="fault 34: a close after a message",
        ),
        pytest.param(
            closes_its_sending_side,
            60,
            "UNAVAILABLE",
            CLOSED,
            "the peer closed the connection",
            id="fault 37: half a close",
        ),
        pytest.param(
            sends_forever(HELLO, frame(PING, 0, 0, bytes(8)) * 50),
            *(None, "RESOURCE_EXHAUSTED", WireProblem.PINGS, "PING frames over the limit of 100 (limit pings)"),
            id="fault 54: a flood",
        ),
        pytest.param(
            sends(HELLO + frame(PING, 0, 1, bytes(8))), None, "INTERNAL", PROTOCOL, "", id="fault 65: a connection"
        ),
        pytest.param(sends(HELLO + data(1, b"x")), None, "INTERNAL", PROTOCOL, "", id="fault 65: a stream"),
        pytest.param(
            sends(b"\x1b[31mevil\n"),
            *(60, "UNAVAILABLE", WireProblem.NOT_HTTP2),
            'the peer does not speak HTTP/2: it began with "\\x1b[31mevil"',
            id="faults 66 and 91: another protocol",
        ),
        pytest.param(
            sends(HELLO + headers(1, fields((":status", "404")))),
            *(60, "UNIMPLEMENTED", PROTOCOL, "the peer answered with HTTP status 404"),
            id="fault 67: no gRPC",
        ),
        # The status is the plugin's own, so the error has no cause.
        pytest.param(
            sends(HELLO + trailers(1, UNIMPLEMENTED)),
            *(60, "UNIMPLEMENTED", None, "unknown service"),
            id="fault 71: an unknown method",
        ),
    ],
)
async def test_a_call_that_fails_has_a_status_a_problem_and_a_reason(
    tmp_path: Path, script: Script, timeout: float | None, status: str, problem: WireProblem | None, reason: str
) -> None:
    """Faults 32, 33, 34, 37, 54, 65, 66, 67, 71 and 91, as each case says."""
    found = await refused(tmp_path, script, timeout=timeout)
    assert found[:2] == (status, problem)
    assert reason in (found[2] or "")


async def test_a_peer_that_dies_between_two_calls_fails_only_the_second(tmp_path: Path) -> None:
    """Faults 35 and 36: the outcome of NotifyRegistrationStatus when the connection was lost in the meantime."""
    async with asking(tmp_path, sends_and_closes(HELLO + answer(1))) as channel:
        assert await get_info(channel) == INFO
        with pytest.raises(GRPCError) as caught:
            await get_info(channel)
    assert caught.value.status is Status.UNAVAILABLE


@pytest.mark.parametrize("late", [data(1, b"x"), headers(1)], ids=["DATA", "HEADERS"])
async def test_a_peer_that_goes_on_after_the_end_of_a_call_is_told_and_may_answer_the_next(
    tmp_path: Path, late: bytes
) -> None:
    """Fault 60: by RST_STREAM with STREAM_CLOSED, while no call is under way, as links read their channels then."""
    was_answered = trio.Event()

    async def peer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(HELLO + answer(1) + late)
        received = b""
        while frame(RST_STREAM, 0, 1, struct.pack(">I", ErrorCode.STREAM_CLOSED)) not in received:
            received += bytes(await stream.receive_some())
        was_answered.set()
        await stream.receive_some()
        await stream.send_all(answer(3))
        await silence(stream)

    async with connected(tmp_path, peer) as channel, trio.open_nursery() as nursery:
        assert await get_info(channel) == INFO
        nursery.start_soon(channel.wait_closed)
        await was_answered.wait()
        assert await get_info(channel) == INFO
        nursery.cancel_scope.cancel()


async def test_a_message_that_cannot_be_decoded_is_internal(tmp_path: Path) -> None:
    """Fault 72: here, invalid UTF-8."""
    status, problem, reason = await refused(tmp_path, sends(HELLO + answer(1, b"\x0a\x02\xff\xfe")))
    assert (status, problem) == ("INTERNAL", None)
    assert (reason or "").startswith("the response is no valid PluginInfo: ")


async def test_the_peer_gets_the_reason_why_its_connection_ends(tmp_path: Path) -> None:
    """RFC 9113 section 5.4.1: GOAWAY with the code of the error, before the close."""
    heard = bytearray()
    closed = trio.Event()

    async def peer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(HELLO + frame(PING, 0, 1, bytes(8)))
        async for part in stream:
            heard.extend(part)
        closed.set()

    async with asking(tmp_path, peer) as channel:
        with pytest.raises(GRPCError):
            await get_info(channel)
        channel.close()
        await closed.wait()
    assert heard == frame(SETTINGS, 1, 0) + goaway(0, ErrorCode.PROTOCOL_ERROR)


async def test_a_peer_that_sends_one_byte_at_a_time_does_not_extend_the_deadline(tmp_path: Path) -> None:
    """Fault 63: progress does not move the deadline."""

    async def peer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        for byte in HELLO + headers(1) + data(1, message(b"x" * 10_000)):
            try:
                await stream.send_all(bytes((byte,)))
            except trio.BrokenResourceError:
                return
            await trio.sleep(0.005)

    expected = ("DEADLINE_EXCEEDED", None, "the deadline of the call passed")
    assert await refused(tmp_path, peer, timeout=0.1) == expected


async def test_a_window_that_stays_shut_ends_the_call_at_its_deadline(tmp_path: Path) -> None:
    """Fault 62: the request is larger than the first window, and SETTINGS then set the initial window to zero."""
    peer = sends(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
    async with connected(tmp_path, peer) as channel:
        with pytest.raises(GRPCError) as caught:
            await channel.stub(ExampleStub).GetExampleInfo(ExampleRequest(request="x" * 100_000), timeout=0.1)
    assert caught.value.args == (Status.DEADLINE_EXCEEDED, "the deadline of the call passed", None)
