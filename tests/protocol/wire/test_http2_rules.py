"""The rules of RFC 9113 that a server may break, with the bytes that break each, and our reaction."""

from __future__ import annotations

import gc
import struct

import pytest
from grpclib.const import Status

from plugind.protocol.wire.budgets import (
    EMPTY_DATA,
    INFORMATIONAL,
    LATE_FRAMES,
    RESETS,
    UNKNOWN_FRAMES,
)
from plugind.protocol.wire.errors import ErrorCode, WireProblem
from plugind.protocol.wire.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MAX_STREAM_ID,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    frame,
)
from plugind.protocol.wire.grpc import ClientCall, request_head
from plugind.protocol.wire.hpack_cache import HeaderCache
from plugind.protocol.wire.http2 import ClientConnection
from plugind.protocol.wire.limits import MAX_WINDOW, PREFACE, WireLimits
from plugind.protocol.wire.sending import STREAMS_BEFORE_SETTINGS
from plugind.tests.wire.hostile import (
    HELLO,
    RESPONSE,
    answer,
    continued,
    data,
    fields,
    headers,
    message,
    trailers,
)

HEAD = request_head("/a.B/C", "localhost")
WORD = struct.Struct(">I")


def begun(
    limits: WireLimits | None = None, *, greeting: bytes = HELLO, ended: bool = True
) -> tuple[ClientConnection, ClientCall]:
    connection = ClientConnection(limits or WireLimits(), HeaderCache())
    call = ClientCall(connection.sender, unary=True)
    connection.sender.open(call, HEAD, end=ended)
    connection.receive(greeting)
    connection.outgoing.clear()
    return connection, call


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def goaway(code: int) -> bytes:
    return frame(GOAWAY, 0, 0, bytes(4) + WORD.pack(code))


def update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, WORD.pack(more))


P, F, W, C = WireProblem.PROTOCOL, WireProblem.FRAME_SIZE, WireProblem.FLOW_CONTROL, WireProblem.COMPRESSION
#: The codes with which RFC 9113 section 7 tells a peer what it has broken.
CODES = {P: 0x1, F: 0x6, W: 0x3, C: 0x9}


@pytest.mark.parametrize(
    ("said", "problem", "words"),
    [
        (frame(SETTINGS, 0, 1), P, "SETTINGS on a stream"),
        (frame(SETTINGS, 0, 0, bytes(5)), F, "SETTINGS of a wrong size"),
        (frame(SETTINGS, ACK, 0, bytes(6)), F, "SETTINGS of a wrong size"),
        (settings((2, 1)), P, "a server may not announce SETTINGS_ENABLE_PUSH"),
        (settings((4, 2**31)), W, "SETTINGS_INITIAL_WINDOW_SIZE of 2147483648"),
        (settings((5, 16_383)), P, "SETTINGS_MAX_FRAME_SIZE of 16383"),
        (settings((5, 2**24)), P, "SETTINGS_MAX_FRAME_SIZE of 16777216"),
        (frame(PING, 0, 1, bytes(8)), P, "malformed PING"),
        (frame(PING, 0, 0, bytes(7)), F, "malformed PING"),
        (frame(PING, 0, 0, bytes(9)), F, "malformed PING"),
        (frame(GOAWAY, 0, 1, bytes(8)), P, "malformed GOAWAY"),
        (frame(GOAWAY, 0, 0, bytes(7)), F, "malformed GOAWAY"),
        (frame(PRIORITY, 0, 0, bytes(5)), P, "malformed PRIORITY"),
        (frame(PRIORITY, 0, 1, bytes(4)), F, "malformed PRIORITY"),
        (frame(RST_STREAM, 0, 1, bytes(3)), F, "RST_STREAM of a wrong size"),
        (frame(RST_STREAM, 0, 0, bytes(4)), P, "RST_STREAM on stream 0, which was never opened"),
        (frame(RST_STREAM, 0, 2, bytes(4)), P, "RST_STREAM on stream 2, which was never opened"),
        (frame(RST_STREAM, 0, 3, bytes(4)), P, "RST_STREAM on stream 3, which was never opened"),
        (frame(WINDOW_UPDATE, 0, 0, bytes(3)), F, "WINDOW_UPDATE of a wrong size"),
        (frame(WINDOW_UPDATE, 0, 3, bytes(4)), P, "WINDOW_UPDATE on stream 3, which was never opened"),
        (update(0, 0), P, "WINDOW_UPDATE by nothing"),
        (update(0, MAX_WINDOW), W, "the connection's window beyond 2^31-1"),
        (update(1, 1) + settings((4, MAX_WINDOW)), W, "a stream's window beyond 2^31-1"),
        (frame(PUSH_PROMISE, END_HEADERS, 1, WORD.pack(2) + RESPONSE), P, "PUSH_PROMISE, though push is disabled"),
        (frame(CONTINUATION, END_HEADERS, 1, RESPONSE), P, "CONTINUATION without HEADERS before it"),
        (data(0, b"x"), P, "DATA on stream 0, which was never opened"),
        (data(2, b"x"), P, "DATA on stream 2, which was never opened"),
        (headers(0), P, "HEADERS on stream 0, which was never opened"),
        (headers(2), P, "HEADERS on stream 2, which was never opened"),
        (headers(5), P, "HEADERS on stream 5, which was never opened"),
        (frame(DATA, PADDED, 1), P, "DATA with more padding than frame"),
        (frame(DATA, PADDED, 1, b"\x02ab"), None, ""),
        (frame(DATA, PADDED, 1, b"\x03ab"), P, "DATA with more padding than frame"),
        (frame(HEADERS, END_HEADERS | PADDED, 1, b"\x01"), P, "HEADERS with more padding than frame"),
        (frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, bytes(4)), F, "HEADERS too short for their priority fields"),
        (frame(HEADERS, 0, 1, RESPONSE) + HELLO, P, "a header block was interrupted by another frame"),
        (
            frame(HEADERS, 0, 1, RESPONSE) + frame(CONTINUATION, END_HEADERS, 3),
            P,
            "a header block was interrupted by another frame",
        ),
        (frame(0xFA, 0, 0, bytes(16_385))[:9], F, "a frame of 16385 bytes, over the 16384 announced"),
        (frame(0xFA, 0, 0, bytes(16_384)), None, ""),
        (headers(1, b"\xff" * 7), C, "the peer sent a header block that is no HPACK"),
        (headers(1, b"\x80"), C, "the peer sent a header block that is no HPACK"),
        (headers(1, b"\xfe"), C, "the peer sent a header block that is no HPACK"),
        (headers(1, b"\0\x05ab"), C, "the peer sent a header block that is no HPACK"),
        (headers(1, b"\x3f\xe2\x1f" + RESPONSE), C, "the peer sent a header block that is no HPACK"),
    ],
)  # fmt: skip
def test_a_broken_rule_ends_the_connection_and_is_named(said: bytes, problem: WireProblem | None, words: str) -> None:
    """Faults 55 to 66: one or two frames break each rule, and the peer gets the code."""
    connection, call = begun()
    connection.receive(said)
    if problem is None:
        assert connection.failure is None
        return
    assert connection.failure is not None
    assert (connection.failure.problem, connection.failure.message) == (problem, words)
    assert call.outcome is not None
    assert call.outcome.cause is connection.failure
    assert bytes(connection.outgoing).endswith(goaway(CODES[problem]))
    assert connection.buffered == 0
    before = bytes(connection.outgoing)
    connection.receive(answer(1))
    connection.receive_end()
    assert bytes(connection.outgoing) == before
    assert connection.failure.message == words


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (headers(1, fields(("x", "y"))), "no :status"),
        (headers(1, fields((":status", "99"))), ":status is 99"),
        (headers(1) + headers(1, end=True), ":status in trailers"),
        (headers(1) + headers(1, fields(("grpc-status", "0"))), "trailers that do not end the stream"),
        (headers(1, fields((":status", "200"), ("Upper", "y"))), "invalid field name Upper"),
    ],
)
def test_malformed_headers_end_only_their_call(said: bytes, words: str) -> None:
    """RFC 9113 section 8.1.1: a stream error; late frames are still decoded."""
    connection, call = begun()
    connection.receive(said)
    assert call.outcome is not None
    assert call.outcome.message == f"malformed response headers: {words}"
    assert call.outcome.status is Status.INTERNAL
    assert connection.failure is None
    assert bytes(connection.outgoing) == frame(RST_STREAM, 0, 1, WORD.pack(ErrorCode.PROTOCOL_ERROR))
    assert call in connection.touched


@pytest.mark.parametrize(
    ("said", "words", "code"),
    [
        (data(1, b"x"), "DATA before the response headers", ErrorCode.PROTOCOL_ERROR),
        (
            headers(1, fields((":status", "103")), end=True),
            "an informational response ended the stream",
            ErrorCode.PROTOCOL_ERROR,
        ),
        (update(1, 0), "WINDOW_UPDATE by nothing", ErrorCode.PROTOCOL_ERROR),
        (update(1, MAX_WINDOW), "a stream's window beyond 2^31-1", ErrorCode.FLOW_CONTROL_ERROR),
    ],
)
def test_a_broken_rule_of_one_stream_ends_only_that_stream(said: bytes, words: str, code: ErrorCode) -> None:
    """RFC 9113 section 5.4.2."""
    connection, call = begun()
    other = ClientCall(connection.sender, unary=True)
    connection.sender.open(other, HEAD, end=True)
    connection.outgoing.clear()
    connection.receive(said)
    assert call.outcome is not None
    assert call.outcome.message == words
    assert bytes(connection.outgoing) == frame(RST_STREAM, 0, 1, WORD.pack(code))
    assert (connection.failure, other.outcome) == (None, None)
    assert set(connection.sender.streams) == {3}
    assert connection.touched == [call]


@pytest.mark.parametrize(
    ("limits", "one", "kind", "words"),
    [
        (WireLimits(resets=3), frame(RST_STREAM, 0, 1, bytes(4)), RESETS, "limit resets"),
        (WireLimits(late_frames=3), data(1, b"x"), LATE_FRAMES, "limit late_frames"),
        (WireLimits(late_frames=3), headers(1), LATE_FRAMES, "limit late_frames"),
    ],
)
def test_frames_for_a_call_that_is_over_cost_a_budget(limits: WireLimits, one: bytes, kind: int, words: str) -> None:
    """Fault 60; the peer sent these frames before it received the reset."""
    connection, call = begun(limits)
    connection.sender.reset(call)
    for spent in range(1, 4):
        connection.receive(one)
        assert (connection.failure, connection.budgets.spent[kind]) == (None, spent)
    connection.receive(one)
    assert connection.failure is not None
    assert words in connection.failure.message


def test_resetting_a_call_refills_the_budget_of_late_frames() -> None:
    connection, call = begun(WireLimits(late_frames=3))
    other = ClientCall(connection.sender, unary=True)
    connection.sender.open(other, HEAD, end=True)
    connection.sender.reset(call)
    for _ in range(3):
        connection.receive(data(1, b"x"))
    connection.sender.reset(other)
    assert connection.budgets.spent[LATE_FRAMES] == 0


def test_interim_responses_are_ignored_up_to_their_budget() -> None:
    """Fault 57."""
    early = headers(1, fields((":status", "103"), ("link", "</a>")))
    connection, call = begun(WireLimits(informational=2))
    connection.receive(early * 2 + headers(1) + data(1, message(b"x")) + trailers(1))
    assert call.outcome is not None
    assert call.outcome.status is Status.OK
    connection, _ = begun(WireLimits(informational=2))
    connection.receive(early * 3)
    assert connection.failure is not None
    assert connection.failure.message == "1xx responses over the limit of 2 (limit informational)"
    assert connection.budgets.spent[INFORMATIONAL] == 3


def test_a_block_may_have_as_many_frames_as_the_limit_allows_and_no_more() -> None:
    """Fault 53."""
    parts = [RESPONSE[:2], *(bytes((byte,)) for byte in RESPONSE[2:5]), RESPONSE[5:]]
    connection, call = begun(WireLimits(continuations=4))
    connection.receive(continued(1, parts))
    assert (connection.failure, call.has_head()) == (None, True)
    connection, _ = begun(WireLimits(continuations=3))
    connection.receive(continued(1, parts))
    assert connection.failure is not None
    assert connection.failure.message == "CONTINUATION frames of one block over the limit of 3 (limit continuations)"


def test_a_block_in_pieces_ends_the_stream_if_its_first_frame_has_end_stream() -> None:
    connection, call = begun()
    ok = fields(("grpc-status", "0"))
    connection.receive(headers(1) + data(1, message(b"x")))
    connection.receive(frame(HEADERS, END_STREAM, 1, ok[:3]))
    assert connection.buffered == 3
    connection.receive(frame(CONTINUATION, END_HEADERS, 1, ok[3:]))
    assert call.outcome is not None
    assert call.outcome.status is Status.OK
    assert connection.buffered == 0


def test_the_pieces_of_a_block_count_towards_the_limit_of_the_list() -> None:
    """Fault 52: even if they are never decoded; at the limit they are accepted."""
    block = fields((":status", "200"), ("content-type", "application/grpc"), ("x", "v" * 100))
    # RFC 7541 section 4.1 adds 32 bytes to each name and value.
    connection, call = begun(WireLimits(header_list_bytes=235))
    connection.receive(continued(1, [block[:20], block[20:]]))
    assert (connection.failure, call.has_head()) == (None, True)
    for limit, words in ((len(block), "a header list"), (len(block) - 1, "a header block")):
        connection, _ = begun(WireLimits(header_list_bytes=limit))
        connection.receive(continued(1, [block[:20], block[20:]]))
        assert connection.failure is not None
        assert connection.failure.message == f"{words} over the limit of {limit} (limit header_list_bytes)"


def test_priority_and_padding_of_headers_have_no_effect() -> None:
    connection, call = begun()
    connection.receive(
        frame(HEADERS, END_HEADERS | PADDED | WITH_PRIORITY, 1, b"\x03" + bytes(5) + RESPONSE + bytes(3))
    )
    assert connection.failure is None
    assert call.head is not None
    assert call.head.content_type == "application/grpc"


def test_received_bytes_are_limited_in_total() -> None:
    """Fault 64: the limit is exact to the byte."""
    said = HELLO + answer(1)
    for total, failed in ((len(said), False), (len(said) - 1, True)):
        connection, _ = begun(WireLimits(total_bytes=total), greeting=said[:20])
        connection.receive(said[20:])
        assert (connection.failure is not None) == failed
        words = f"bytes received on this connection over the limit of {total} (limit total_bytes)"
        assert connection.failure is None or connection.failure.message == words


TLS, HTTP1 = "the peer speaks TLS, not plain HTTP/2", "the peer answers in HTTP/1, not in HTTP/2 as gRPC does"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", HTTP1),
        (b"HTTP/1.", HTTP1),
        (b"<html>", HTTP1),
        (b"\x15\x03\x01\0\2\2\x46\0\0", TLS),
        (b"\x16\x03\x01\0\2\2\x46\0\0", TLS),
        # A TLS alert has seven bytes, which is less than the head of a frame.
        (b"\x15\x03\x01\0\2\2\x46", TLS),
        (b"\x15\x03", TLS),
        (b"SSH-2.0-x", 'the peer does not speak HTTP/2: it began with "SSH-2.0-x"'),
        (SETTINGS_ACK, 'the peer does not speak HTTP/2: it began with "\\x00\\x00\\x00\\x04\\x01\\x00\\x00\\x00\\x00"'),
        (
            b"\xff\xff\xff\x04\0\0\0\0\0",
            'the peer does not speak HTTP/2: it began with "\ufffd\ufffd\ufffd\\x04\\x00\\x00\\x00\\x00\\x00"',
        ),
    ],
)
def test_a_peer_that_does_not_begin_with_settings_does_not_use_http2(said: bytes, words: str) -> None:
    """Fault 66; RFC 9113 section 3.4."""
    connection, call = begun(greeting=b"")
    connection.receive(said)
    assert bytes(connection.outgoing) == (b"" if len(said) < 9 else goaway(ErrorCode.PROTOCOL_ERROR))
    connection.receive_end()
    assert connection.failure is not None
    assert (connection.failure.problem, connection.failure.message) == (WireProblem.NOT_HTTP2, words)
    assert call.outcome is not None
    assert call.outcome.status is Status.UNAVAILABLE


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"", "the peer closed the connection without a byte"),
        (b"SSH-2.", 'the peer closed the connection after "SSH-2."'),
        (HELLO, "the peer closed the connection"),
        (HELLO + headers(1)[:12], "the peer closed the connection"),
        (
            HELLO + frame(GOAWAY, 0, 0, WORD.pack(1) + WORD.pack(0xB) + b"too\nmuch"),
            "the peer closed the connection: the peer is going away (ENHANCE_YOUR_CALM: too\\x0amuch)",
        ),
        (
            HELLO + frame(GOAWAY, 0, 0, WORD.pack(1) + WORD.pack(0)),
            "the peer closed the connection: the peer is going away (NO_ERROR)",
        ),
    ],
)
def test_the_reason_of_an_early_end_shows_the_bytes_before_it(said: bytes, words: str) -> None:
    """Faults 33, 34, 37 and 66."""
    connection, call = begun(greeting=said)
    connection.receive_end()
    assert connection.failure is not None
    assert (connection.failure.problem, connection.failure.message) == (WireProblem.CLOSED, words)
    assert call.outcome is not None
    assert call.outcome.status is Status.UNAVAILABLE


def test_goaway_ends_the_calls_beyond_its_last_stream_and_no_others() -> None:
    """RFC 9113 section 6.8; no new call begins."""
    connection, first = begun()
    second = ClientCall(connection.sender, unary=True)
    connection.sender.open(second, HEAD, end=True)
    connection.outgoing.clear()
    connection.receive(frame(GOAWAY, 0, 0, WORD.pack(1 | 1 << 31) + WORD.pack(0)))
    assert first.outcome is None
    assert second.outcome is not None
    assert second.outcome.message == "the peer is going away (NO_ERROR)"
    assert second.outcome.status is Status.UNAVAILABLE
    assert (second.local_open, second.remote_open) == (False, False)
    assert connection.touched == [second]
    assert not connection.sender.can_open
    assert connection.sender.refusal is connection.sender.refused
    assert connection.sender.refused is not None
    assert not connection.outgoing
    assert set(connection.sender.streams) == {1}
    connection.receive(answer(1))
    assert first.outcome is not None
    assert first.outcome.status is Status.OK


def test_windows_may_have_the_largest_size() -> None:
    """RFC 9113 section 6.9.1: exact to the byte for the connection, for an open stream and for one that opens later."""
    connection, call = begun(ended=False)
    connection.receive(update(0, MAX_WINDOW - 65_535) + update(1, MAX_WINDOW - 65_535))
    assert (connection.failure, call.outcome) == (None, None)
    assert (connection.sender.send_window, call.send_window) == (MAX_WINDOW, MAX_WINDOW)
    connection, call = begun(ended=False)
    connection.receive(settings((4, MAX_WINDOW)))
    assert (connection.failure, call.send_window) == (None, MAX_WINDOW)
    connection.receive(settings((4, 0)) + update(1, 1))
    connection.receive(settings((4, MAX_WINDOW)))
    assert connection.failure is not None
    assert connection.failure.message == "a stream's window beyond 2^31-1"
    assert connection.failure.problem is WireProblem.FLOW_CONTROL


def test_the_connection_is_credited_whatever_the_state_of_its_streams() -> None:
    """Once half of the window is used, all of it is credited, also for data of a call that is over."""
    for window, credited in ((65_535, 32_768), (65_536, 36_864)):
        connection, call = begun(WireLimits(connection_window=window))
        connection.sender.reset(call)
        connection.outgoing.clear()
        got = 0
        while not connection.outgoing:
            connection.receive(data(1, bytes(4096)))
            got += 4096
        assert got == credited, "at less than half"
        assert bytes(connection.outgoing) == update(0, got)
        connection.outgoing.clear()
        connection.receive(data(1, bytes(4096)) * 7)
        assert not connection.outgoing


def test_a_call_that_is_answered_before_the_request_ends_is_reset() -> None:
    """RFC 9113 section 8.1, with and without trailers."""
    for said in (headers(1) + data(1, message(b"x")) + trailers(1), headers(1) + data(1, message(b"x"), end=True)):
        connection, call = begun(ended=False)
        connection.receive(said)
        assert call.outcome is not None
        assert (call.local_open, call.remote_open) == (False, False)
        assert bytes(connection.outgoing) == frame(RST_STREAM, 0, 1, WORD.pack(ErrorCode.CANCEL))
        assert not connection.sender.streams


def test_a_ping_is_answered_with_its_own_bytes_and_an_acknowledgement_is_not_answered() -> None:
    connection, _ = begun()
    connection.receive(frame(PING, 0, 0, b"12345678") + frame(PING, ACK, 0, b"abcdefgh"))
    assert bytes(connection.outgoing) == frame(PING, ACK, 0, b"12345678")


def test_settings_are_acknowledged_and_applied() -> None:
    """RFC 9113 section 6.5: windows of open streams change too, and the size of frames is limited."""
    connection, call = begun(ended=False)
    assert connection.sender.can_open
    connection.receive(settings((1, 0), (3, 1), (4, 100), (5, 1 << 20), (6, 1), (0xFF00, 1)))
    assert bytes(connection.outgoing) == SETTINGS_ACK
    assert (connection.sender.max_streams, connection.sender.max_frame, call.send_window) == (1, 65_536, 100)
    assert not connection.sender.can_open
    assert connection.sender.refusal is None
    assert call in connection.touched
    call.send_window = 0
    connection.receive(settings((4, 50)))
    assert call.send_window == -50
    connection.receive(settings((3, 2)))
    assert connection.sender.can_open
    other = ClientCall(connection.sender, unary=True)
    connection.sender.open(other, HEAD)
    assert other.send_window == 50
    connection.receive(SETTINGS_ACK)
    assert not connection.sender.can_open


def test_a_hundred_calls_may_begin_before_the_settings_of_the_peer() -> None:
    connection = ClientConnection(WireLimits(), HeaderCache())
    while connection.sender.can_open:
        connection.sender.open(ClientCall(connection.sender, unary=True), HEAD, end=True)
    assert len(connection.sender.streams) == STREAMS_BEFORE_SETTINGS == 100
    connection.receive(HELLO)
    assert connection.sender.can_open


def test_a_connection_that_has_used_up_its_stream_ids_opens_no_more_streams() -> None:
    connection, _ = begun()
    connection.sender._next_id = MAX_STREAM_ID
    assert connection.sender.can_open
    connection.sender.open(ClientCall(connection.sender, unary=True), HEAD, end=True)
    assert not connection.sender.can_open
    assert connection.sender.refusal is not None
    assert connection.sender.refusal.message == "the connection has used up its stream numbers"


def test_empty_data_that_ends_a_stream_costs_nothing() -> None:
    connection, _ = begun()
    connection.receive(headers(1) + data(1, b"", end=True))
    assert connection.budgets.spent[EMPTY_DATA] == 0
    connection.receive(frame(0xFA, 0, 0))
    assert connection.budgets.spent[UNKNOWN_FRAMES] == 1
    assert connection.budgets.counted == 2, "the SETTINGS of the preface and this frame"


def test_a_first_block_sets_the_size_of_the_table_and_a_large_one_is_cut() -> None:
    """RFC 7541 section 4.2, RFC 9113 section 6.10."""
    connection = ClientConnection(WireLimits(), HeaderCache())
    assert bytes(connection.outgoing).startswith(PREFACE)
    connection.outgoing.clear()
    connection.sender.open(ClientCall(connection.sender, unary=True), b"\x83", end=True)
    connection.sender.open(ClientCall(connection.sender, unary=True), b"\x83")
    assert bytes(connection.outgoing) == (
        frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x20\x83") + frame(HEADERS, END_HEADERS, 3, b"\x83")
    )
    connection.outgoing.clear()
    large = bytes(16_384 * 2)
    connection.sender.open(ClientCall(connection.sender, unary=True), large + b"\x83", end=True)
    assert bytes(connection.outgoing) == (
        frame(HEADERS, END_STREAM, 5, large[:16_384])
        + frame(CONTINUATION, 0, 5, large[16_384:])
        + frame(CONTINUATION, END_HEADERS, 5, b"\x83")
    )
    connection.outgoing.clear()
    connection.sender.open(ClientCall(connection.sender, unary=True), large, end=True)
    assert bytes(connection.outgoing).endswith(frame(CONTINUATION, END_HEADERS, 7, large[:16_384]))


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param((4, 4), id="the window of a stream"),
        pytest.param((5, 16_384), id="the size of a frame"),
        pytest.param((0, 0), id="the window of the connection"),
    ],
)
def test_a_request_that_does_not_fit_in_one_step_changes_nothing(setting: tuple[int, int]) -> None:
    connection, _ = begun()
    body = b"12345"
    connection.receive(settings(setting))
    connection.outgoing.clear()
    if not setting[0]:
        connection.sender.send_window = 4
    if setting[0] == 5:
        body = bytes(16_385)
    call = ClientCall(connection.sender, unary=True)
    assert not connection.sender.request(call, HEAD, body)
    assert (bytes(connection.outgoing), call.id, list(connection.sender.streams)) == (b"", 0, [1])
    assert not connection.sender.request(call, bytes(16_384), b"")


def test_a_window_is_used_to_its_last_byte() -> None:
    connection, call = begun(ended=False)
    connection.sender.send_window = 1
    assert connection.sender.send(call, b"ab", end=True) == 1
    assert bytes(connection.outgoing) == frame(DATA, 0, 1, b"a")
    assert connection.sender.send(call, b"b", end=True) == 0
    assert call.local_open
    connection.receive(update(0, 1))
    connection.outgoing.clear()
    assert connection.sender.send(call, b"b", end=True) == 1
    assert bytes(connection.outgoing) == frame(DATA, END_STREAM, 1, b"b")
    assert not call.local_open


def test_a_stream_is_credited_once_half_of_its_window_is_used() -> None:
    """Fault 65. RFC 9113 section 6.9."""
    connection, call = begun(WireLimits(stream_window=65_536))
    connection.sender.used(call, 32_767)
    assert not connection.outgoing
    connection.sender.used(call, 1)
    assert bytes(connection.outgoing) == update(1, 32_768)
    assert (call.receive_window, call.unacknowledged) == (65_536 + 32_768, 0)


def test_a_request_ends_without_data_though_its_window_is_negative() -> None:
    """RFC 9113 section 6.9.2: a frame without data needs no window."""
    connection, call = begun(ended=False)
    assert connection.sender.send(call, bytes(10), end=False) == 10
    connection.receive(settings((4, 0)))
    assert call.send_window == -10
    connection.outgoing.clear()
    assert connection.sender.send(call, b"x", end=True) == 0
    assert connection.sender.send(call, b"", end=True) == 0
    assert bytes(connection.outgoing) == frame(DATA, END_STREAM, 1)
    assert not call.local_open


def test_a_connection_that_failed_is_freed_without_the_garbage_collector() -> None:
    """Otherwise a thousand flooders held 100 MB, since the collector seldom comes (fault 64)."""
    connection = ClientConnection()
    connection.receive(HELLO)
    gc.collect()
    connection.receive(frame(CONTINUATION, 0, 1))
    assert connection.failure is not None
    del connection
    assert gc.collect() == 0


def test_a_request_in_one_step_is_the_same_bytes_as_in_two() -> None:
    for body in (b"", b"x" * 100, b"x" * 16_384):
        one, two = (ClientConnection(WireLimits(), HeaderCache()) for _ in range(2))
        for number in range(2):
            first, second = ClientCall(one.sender, unary=True), ClientCall(two.sender, unary=True)
            assert one.sender.request(first, HEAD, body)
            two.sender.open(second, HEAD)
            assert two.sender.send(second, body, end=True) == len(body)
            assert bytes(one.outgoing) == bytes(two.outgoing)
            for name in ("id", "send_window", "receive_window", "local_open", "remote_open", "head_done"):
                assert getattr(first, name) == getattr(second, name), (name, number)
            assert one.sender.send_window == two.sender.send_window
            assert one.budgets.spent == two.budgets.spent
            assert list(one.sender.streams) == list(two.sender.streams)


@pytest.mark.parametrize("window", [(4, 5), (0, 5)], ids=["of a stream", "of the connection"])
def test_a_request_that_fills_a_window_is_sent_in_one_step(window: tuple[int, int]) -> None:
    connection, _ = begun()
    if window[0]:
        connection.receive(settings(window))
    else:
        connection.sender.send_window = window[1]
    connection.outgoing.clear()
    call = ClientCall(connection.sender, unary=True)
    assert connection.sender.request(call, HEAD, b"12345")
    assert bytes(connection.outgoing).endswith(frame(DATA, END_STREAM, 3, b"12345"))
    assert min(connection.sender.send_window, call.send_window) == 0
