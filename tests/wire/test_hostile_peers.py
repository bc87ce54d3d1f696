"""Plugins that answer wrongly, or not at all. Each causes one status with one reason, on its own connection only."""

import struct
from pathlib import Path

import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.protocol.wire.errors import ErrorCode, WireProblem
from plugind.protocol.wire.frames import (
    CONTINUATION,
    DATA,
    HEADERS,
    PADDED,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from plugind.tests.wire.hostile import (
    HELLO,
    INFO,
    RESPONSE,
    answer,
    asking,
    both_ways,
    connected,
    continued,
    data,
    fields,
    get_info,
    goaway,
    headers,
    message,
    refused,
    sends,
    sends_and_closes,
    trailers,
)

__all__ = ["both_ways"]

pytestmark = pytest.mark.usefixtures("both_ways")

PROTOCOL, CLOSED = WireProblem.PROTOCOL, WireProblem.CLOSED


async def silence(stream: trio.SocketStream) -> None:
    """Read everything and send nothing."""
    while await stream.receive_some():
        pass


async def test_a_call_to_a_silent_peer_ends_at_its_deadline(tmp_path: Path) -> None:
    """Fault 32."""
    expected = ("DEADLINE_EXCEEDED", None, "the deadline of the call passed")
    assert await refused(tmp_path, silence, timeout=0.05) == expected


async def test_a_peer_that_closes_at_once_is_unavailable(tmp_path: Path) -> None:
    """Fault 33: the close may be noticed while sending or while receiving."""

    async def peer(stream: trio.SocketStream) -> None:
        del stream

    status, problem, _ = await refused(tmp_path, peer)
    assert (status, problem) == ("UNAVAILABLE", CLOSED)


async def test_a_peer_that_closes_without_a_byte_is_reported_as_such(tmp_path: Path) -> None:
    """Fault 33."""
    expected = ("UNAVAILABLE", CLOSED, "the peer closed the connection without a byte")
    assert await refused(tmp_path, sends_and_closes()) == expected


@pytest.mark.parametrize("said", [HELLO, HELLO + headers(1), HELLO + headers(1) + data(1, message(b""))[:7]])
async def test_a_peer_that_dies_during_the_call_is_unavailable(tmp_path: Path, said: bytes) -> None:
    """Fault 34: at any point, even after a whole message."""
    assert await refused(tmp_path, sends_and_closes(said)) == ("UNAVAILABLE", CLOSED, "the peer closed the connection")


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


async def test_a_half_close_is_unavailable(tmp_path: Path) -> None:
    """Fault 37: the peer shuts its sending side and stays."""

    async def peer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(HELLO)
        await stream.send_eof()
        await silence(stream)

    assert await refused(tmp_path, peer) == ("UNAVAILABLE", CLOSED, "the peer closed the connection")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer answers in HTTP/1, not in HTTP/2 as gRPC does"),
        (b"\x15\x03\x01\x00\x02\x02\x46rest", "the peer speaks TLS, not plain HTTP/2"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", 'the peer does not speak HTTP/2: it began with "SSH-2.0-O"'),
        (b"\x1b[31mevil\n", 'the peer does not speak HTTP/2: it began with "\\x1b[31mevil"'),
    ],
)
async def test_a_peer_of_another_protocol_is_reported_as_such(tmp_path: Path, said: bytes, reason: str) -> None:
    """Faults 66 and 91: the reason names HTTP/1, and shows the peer's bytes without control characters."""
    assert await refused(tmp_path, sends(said)) == ("UNAVAILABLE", WireProblem.NOT_HTTP2, reason)


@pytest.mark.parametrize(
    ("response", "status", "reason"),
    [
        (fields((":status", "200")), "UNKNOWN", "the peer answered with no content-type, not application/grpc"),
        (
            fields((":status", "200"), ("content-type", "text/html")),
            "UNKNOWN",
            "the peer answered with content-type text/html, not application/grpc",
        ),
        (
            fields((":status", "200"), ("content-type", "application/grpc+json")),
            "UNKNOWN",
            "the peer answered with content-type application/grpc+json, not application/grpc",
        ),
        *(
            (fields((":status", str(code))), status, f"the peer answered with HTTP status {code}")
            for code, status in (
                (400, "INTERNAL"),
                (401, "UNAUTHENTICATED"),
                (403, "PERMISSION_DENIED"),
                (404, "UNIMPLEMENTED"),
                (429, "UNAVAILABLE"),
                (500, "UNKNOWN"),
                (502, "UNAVAILABLE"),
                (503, "UNAVAILABLE"),
                (504, "UNAVAILABLE"),
                (204, "UNKNOWN"),
            )
        ),
    ],
)
async def test_bad_response_headers_have_their_status(
    tmp_path: Path, response: bytes, status: str, reason: str
) -> None:
    """Fault 67: gRPC's own mapping of HTTP statuses, and the check of the content type."""
    assert await refused(tmp_path, sends(HELLO + headers(1, response))) == (status, PROTOCOL, reason)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (fields(("x", "y")), "the trailers have no grpc-status"),
        (fields(("grpc-status", "")), "grpc-status is "),
        (fields(("grpc-status", "many"), ("grpc-message", "%41%zz")), "grpc-status is many: A%zz"),
        (fields(("grpc-status", "17")), "grpc-status is 17"),
        (fields(("grpc-status", "-1")), "grpc-status is -1"),
    ],
)
async def test_a_bad_grpc_status_is_unknown(tmp_path: Path, block: bytes, reason: str) -> None:
    """Fault 67."""
    peer = sends(HELLO + headers(1) + data(1, message(b"")) + trailers(1, block))
    assert await refused(tmp_path, peer) == ("UNKNOWN", PROTOCOL, reason)


async def test_a_compressed_message_is_internal(tmp_path: Path) -> None:
    """Fault 68: no compression was negotiated."""
    peer = sends(HELLO + headers(1) + data(1, message(b"x", compressed=1)) + trailers(1))
    expected = ("INTERNAL", PROTOCOL, "the peer sent a compressed message, though no compression was agreed on")
    assert await refused(tmp_path, peer) == expected


@pytest.mark.parametrize("cut", [1, 4, 5, 9])
async def test_a_truncated_message_is_internal(tmp_path: Path, cut: int) -> None:
    """Fault 69: the trailers report success, but the message is incomplete."""
    peer = sends(HELLO + headers(1) + data(1, message(b"12345")[:cut]) + trailers(1))
    assert await refused(tmp_path, peer) == ("INTERNAL", PROTOCOL, "the response ended in the middle of a message")


async def test_two_messages_to_a_unary_call_are_internal(tmp_path: Path) -> None:
    """Fault 70: in one frame or in two."""
    for bodies in (data(1, message(b"") * 2), data(1, message(b"")) * 2):
        expected = ("INTERNAL", PROTOCOL, "the peer sent more than one message to a call that takes one")
        assert await refused(tmp_path, sends(HELLO + headers(1) + bodies + trailers(1))) == expected
        await trio.Path(tmp_path / "peer.sock").unlink()


_NOTHING_BUT_OK = fields((":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "0"))


@pytest.mark.parametrize("said", [headers(1) + trailers(1), trailers(1, _NOTHING_BUT_OK)])
async def test_success_without_a_message_is_internal(tmp_path: Path, said: bytes) -> None:
    """Fault 70 in reverse: with headers and trailers, or with trailers only."""
    expected = ("INTERNAL", PROTOCOL, "the response has no message")
    assert await refused(tmp_path, sends(HELLO + said)) == expected


async def test_the_plugin_reports_an_unimplemented_method(tmp_path: Path) -> None:
    """Fault 71: the status is the plugin's own, so the error has no cause."""
    only = fields(
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "12"),
        ("grpc-message", "unknown%20service"),
    )
    assert await refused(tmp_path, sends(HELLO + trailers(1, only))) == ("UNIMPLEMENTED", None, "unknown service")


@pytest.mark.parametrize("body", [b"\x0a\x02\xff\xfe", b"\xff\xff\xff", b"\x0a\x7f"])
async def test_a_message_that_cannot_be_decoded_is_internal(tmp_path: Path, body: bytes) -> None:
    """Fault 72: invalid UTF-8, and bytes that are not protobuf."""
    status, problem, reason = await refused(tmp_path, sends(HELLO + answer(1, body)))
    assert (status, problem) == ("INTERNAL", None)
    assert (reason or "").startswith("the response is no valid PluginInfo: ")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.NO_ERROR, "INTERNAL"),
        (ErrorCode.PROTOCOL_ERROR, "INTERNAL"),
        (ErrorCode.REFUSED_STREAM, "UNAVAILABLE"),
        (ErrorCode.CANCEL, "CANCELLED"),
        (ErrorCode.ENHANCE_YOUR_CALM, "RESOURCE_EXHAUSTED"),
        (ErrorCode.INADEQUATE_SECURITY, "PERMISSION_DENIED"),
        (ErrorCode.HTTP_1_1_REQUIRED, "UNKNOWN"),
    ],
)
async def test_a_reset_has_the_status_of_its_code(tmp_path: Path, code: ErrorCode, status: str) -> None:
    """Fault 60: gRPC's own mapping."""
    peer = sends(HELLO + frame(RST_STREAM, 0, 1, struct.pack(">I", code)))
    assert await refused(tmp_path, peer) == (status, PROTOCOL, f"the peer reset the call ({code.name})")


async def test_a_reset_with_an_undefined_code_is_unknown(tmp_path: Path) -> None:
    """Fault 60."""
    peer = sends(HELLO + frame(RST_STREAM, 0, 1, struct.pack(">I", 0xDEADBEEF)))
    assert await refused(tmp_path, peer) == ("UNKNOWN", PROTOCOL, "the peer reset the call (error code 0xdeadbeef)")


async def test_a_goaway_below_the_call_is_unavailable_with_its_reason(tmp_path: Path) -> None:
    """Fault 60: the reason shows the peer's debug data on one line, truncated (fault 94)."""
    peer = sends(HELLO + goaway(0, 11, b"too_many\npings" + b"!" * 1000))
    expected = "the peer is going away (ENHANCE_YOUR_CALM: too_many\\x0apings" + "!" * 186 + "…)"
    assert await refused(tmp_path, peer) == ("UNAVAILABLE", WireProblem.GOING_AWAY, expected)


async def test_a_goaway_in_the_middle_lets_the_call_end_and_refuses_the_next(tmp_path: Path) -> None:
    """RFC 9113 section 6.8: calls up to the last stream are answered."""
    peer = sends(HELLO + headers(1) + goaway(1, 0) + data(1, message(INFO.SerializeToString())) + trailers(1))
    async with asking(tmp_path, peer) as channel:
        assert await get_info(channel) == INFO
        with pytest.raises(GRPCError) as caught:
            await get_info(channel)
    assert caught.value.args[:2] == (Status.UNAVAILABLE, "the peer is going away (NO_ERROR)")


BROKEN_RULES = {
    "frame over the size announced": (b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", WireProblem.FRAME_SIZE),
    "DATA on a stream never opened": (data(3, b"x"), PROTOCOL),
    "DATA on the connection": (data(0, b"x"), PROTOCOL),
    "HEADERS on a stream of the server": (headers(2), PROTOCOL),
    "HEADERS interrupted": (frame(HEADERS, 0, 1, RESPONSE) + frame(PING, 0, 0, bytes(8)), PROTOCOL),
    "CONTINUATION of another stream": (frame(HEADERS, 0, 1, RESPONSE) + frame(CONTINUATION, 4, 3), PROTOCOL),
    "CONTINUATION out of nothing": (frame(CONTINUATION, 4, 1), PROTOCOL),
    "padding longer than its frame": (headers(1) + frame(DATA, PADDED, 1, b"\xffx"), PROTOCOL),
    "priority fields that are cut": (frame(HEADERS, 0x24, 1, b"abc"), WireProblem.FRAME_SIZE),
    "SETTINGS on a stream": (frame(SETTINGS, 0, 1), PROTOCOL),
    "SETTINGS of seven bytes": (frame(SETTINGS, 0, 0, bytes(7)), WireProblem.FRAME_SIZE),
    "acknowledgement with a payload": (frame(SETTINGS, 1, 0, bytes(6)), WireProblem.FRAME_SIZE),
    "push announced by a server": (frame(SETTINGS, 0, 0, struct.pack(">HI", 2, 1)), PROTOCOL),
    "window of 2^31": (frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31)), WireProblem.FLOW_CONTROL),
    "frame size below the least": (frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 16_383)), PROTOCOL),
    "window update by nothing": (frame(WINDOW_UPDATE, 0, 0, bytes(4)), PROTOCOL),
    "window update of a call by nothing": (frame(WINDOW_UPDATE, 0, 1, bytes(4)), PROTOCOL),
    "window update of three bytes": (frame(WINDOW_UPDATE, 0, 0, bytes(3)), WireProblem.FRAME_SIZE),
    "window beyond its largest": (
        frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1)),
        WireProblem.FLOW_CONTROL,
    ),
    "window of a call beyond its largest": (
        frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 2**31 - 1)),
        WireProblem.FLOW_CONTROL,
    ),
    "PING on a stream": (frame(PING, 0, 1, bytes(8)), PROTOCOL),
    "PING of seven bytes": (frame(PING, 0, 0, bytes(7)), WireProblem.FRAME_SIZE),
    "RST_STREAM of three bytes": (frame(RST_STREAM, 0, 1, bytes(3)), WireProblem.FRAME_SIZE),
    "RST_STREAM of a stream never opened": (frame(RST_STREAM, 0, 99, bytes(4)), PROTOCOL),
    "GOAWAY that is cut": (frame(7, 0, 0, bytes(7)), WireProblem.FRAME_SIZE),
    "GOAWAY on a stream": (frame(7, 0, 1, bytes(8)), PROTOCOL),
    "DATA before HEADERS": (data(1, b"x"), PROTOCOL),
    "no :status": (headers(1, fields(("content-type", "application/grpc"))), PROTOCOL),
    ":status twice": (headers(1, fields((":status", "200"), (":status", "200"))), PROTOCOL),
    ":status of a request": (headers(1, fields((":status", "200"), (":path", "/"))), PROTOCOL),
    ":status that is no number": (headers(1, fields((":status", "2OO"))), PROTOCOL),
    ":status in trailers": (headers(1) + trailers(1, RESPONSE), PROTOCOL),
    "trailers without an end": (headers(1) + headers(1, fields(("grpc-status", "0"))), PROTOCOL),
    "upper-case field": (headers(1, fields((":status", "200"), ("Bad", "x"))), PROTOCOL),
    "connection field": (headers(1, fields((":status", "200"), ("connection", "close"))), PROTOCOL),
    "line break in a value": (headers(1, fields((":status", "200"), ("x", "a\nb"))), PROTOCOL),
    "1xx that ends": (headers(1, fields((":status", "100")), end=True), PROTOCOL),
    "no HPACK": (headers(1, b"\xff\xff\xff\xff\xff\xff"), WireProblem.COMPRESSION),
    "HPACK index beyond the table": (headers(1, b"\xfe"), WireProblem.COMPRESSION),
    "HPACK string that is cut": (headers(1, b"\0\x05ab"), WireProblem.COMPRESSION),
    "HPACK table larger than announced": (headers(1, b"\x3f\xe2\x1f" + RESPONSE), WireProblem.COMPRESSION),
}


@pytest.mark.parametrize("rule", BROKEN_RULES)
async def test_a_broken_rule_of_http2_is_internal(tmp_path: Path, rule: str) -> None:
    """Fault 65: whatever rule a peer breaks, the call ends at once with a reason, and no call hangs."""
    said, problem = BROKEN_RULES[rule]
    status, found, reason = await refused(tmp_path, sends(HELLO + said), timeout=None)
    assert (status, found) == ("INTERNAL", problem)
    assert reason


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


async def test_continuation_padding_and_priority_are_understood(tmp_path: Path) -> None:
    """RFC 9113 sections 6.1, 6.2 and 6.10: these forms are rare but valid."""
    prioritised = frame(HEADERS, 0x2C, 1, b"\x03" + bytes(5) + RESPONSE + bytes(3))
    body = message(INFO.SerializeToString())
    padded = frame(DATA, PADDED, 1, bytes((200,)) + body[:3] + bytes(200)) + frame(DATA, PADDED, 1, b"\0" + body[3:])
    last = fields(("grpc-status", "0"))
    said = HELLO + prioritised + padded + frame(HEADERS, 1, 1, last[:2]) + frame(CONTINUATION, 4, 1, last[2:])
    async with asking(tmp_path, sends(said)) as channel:
        assert await get_info(channel) == INFO


async def test_headers_in_many_pieces_are_one_block(tmp_path: Path) -> None:
    """RFC 9113 section 6.10: up to the limit of CONTINUATION frames."""
    pieces = [RESPONSE[at : at + 1] for at in range(len(RESPONSE))][:16]
    pieces[-1] += RESPONSE[16:]
    said = continued(1, pieces) + data(1, message(INFO.SerializeToString())) + trailers(1)
    async with asking(tmp_path, sends(HELLO + said)) as channel:
        assert await get_info(channel) == INFO


async def test_a_peer_that_overruns_the_window_of_a_cancelled_call_gets_flow_control_error(tmp_path: Path) -> None:
    """RFC 9113 section 6.9.1; fault 65. The response has no content-type, for which the call ends at once."""
    overrun = frame(RST_STREAM, 0, 1, struct.pack(">I", ErrorCode.FLOW_CONTROL_ERROR))
    done = trio.Event()

    async def peer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(HELLO + headers(1, fields((":status", "200"))))
        await stream.send_all(data(1, bytes(16_384)) * 16 + data(1, b"x"))
        received = b""
        while overrun not in received:
            received += await stream.receive_some()
        cancel = frame(RST_STREAM, 0, 1, struct.pack(">I", ErrorCode.CANCEL))
        assert received.index(cancel) < received.index(overrun)
        done.set()
        await silence(stream)

    async with connected(tmp_path, peer) as channel, trio.open_nursery() as nursery:
        with pytest.raises(GRPCError, match="no content-type"):
            await get_info(channel)
        nursery.start_soon(channel.wait_closed)
        await done.wait()
        nursery.cancel_scope.cancel()
