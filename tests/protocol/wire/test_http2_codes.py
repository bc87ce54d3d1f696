"""Streams that are over or beyond their window: each frame is answered as RFC 9113 demands, and only so often."""

from __future__ import annotations

import struct

import pytest
from grpclib.const import Status

from plugind.protocol.wire.errors import ErrorCode
from plugind.protocol.wire.frames import (
    CONTINUATION,
    END_HEADERS,
    GOAWAY,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    WINDOW_UPDATE,
    frame,
)
from plugind.protocol.wire.grpc import ClientCall, request_head
from plugind.protocol.wire.hpack_cache import HeaderCache
from plugind.protocol.wire.http2 import ClientConnection
from plugind.protocol.wire.limits import WireLimits
from plugind.protocol.wire.outcomes import CallOutcome
from plugind.protocol.wire.sending import MAX_ABANDONED
from plugind.tests.wire.hostile import HELLO, RESPONSE, answer, data, fields, headers, message, trailers

HEAD = request_head("/a.B/C", "localhost")
WORD = struct.Struct(">I")
#: The smallest window that a stream can have.
WINDOW = 65_535
E = ErrorCode


def begun(limits: WireLimits | None = None, *, greeting: bytes = HELLO) -> tuple[ClientConnection, ClientCall]:
    """A connection with one call, whose request is sent."""
    connection = ClientConnection(limits or WireLimits(stream_window=WINDOW), HeaderCache())
    call = ClientCall(connection.sender, unary=True)
    connection.sender.open(call, HEAD, end=True)
    connection.receive(greeting)
    connection.outgoing.clear()
    return connection, call


def codes(connection: ClientConnection) -> list[str]:
    """The codes in ``outgoing``, in order: of GOAWAY, and of RST_STREAM with its stream."""
    found, rest = [], bytes(connection.outgoing)
    while rest:
        size, kind = int.from_bytes(rest[:3], "big"), rest[3]
        stream, payload, rest = WORD.unpack(rest[5:9])[0], rest[9 : 9 + size], rest[9 + size :]
        if kind == GOAWAY:
            found.append(f"GOAWAY {E(WORD.unpack(payload[4:8])[0]).name}")
        elif kind == RST_STREAM:
            found.append(f"RST_STREAM {stream} {E(WORD.unpack(payload)[0]).name}")
    return found


def body(size: int) -> bytes:
    """DATA frames of stream 1 with ``size`` bytes in all."""
    return b"".join(data(1, bytes(min(16_384, size - start))) for start in range(0, size, 16_384))


def test_data_beyond_the_window_of_a_stream_that_nobody_reads_has_the_code_of_flow_control() -> None:
    """Section 6.9.1; fault 65: messages that are not taken are not credited."""
    connection, _ = begun()
    call = ClientCall(connection.sender, unary=False)
    connection.sender.open(call, HEAD, end=True)
    connection.outgoing.clear()
    connection.receive(headers(3))
    while not codes(connection):
        connection.receive(data(3, message(bytes(10_000))))
    assert codes(connection) == ["RST_STREAM 3 FLOW_CONTROL_ERROR"]
    assert connection.failure is None


#: What a peer sends, within the rules of HTTP/2, that makes a call fail at once; and the size of its DATA.
GIVEN_UP = {
    "no content-type": (headers(1, fields((":status", "200"))), 0),
    "another content-type": (headers(1, fields((":status", "200"), ("content-type", "text/html"))), 0),
    "an HTTP status": (headers(1, fields((":status", "404"))), 0),
    "a compressed message": (headers(1) + data(1, message(b"x", compressed=1)), 6),
    "a message beyond the limit": (headers(1) + data(1, b"\0\xff\xff\xff\xff"), 5),
    "two messages": (headers(1) + data(1, message(b"x") + message(b"y")), 12),
}


@pytest.mark.parametrize("name", GIVEN_UP)
@pytest.mark.parametrize("together", [True, False], ids=["in one piece", "in pieces"])
def test_data_beyond_the_window_of_a_call_that_was_given_up_has_the_code_of_flow_control(
    name: str, *, together: bool
) -> None:
    """Section 6.9.1; fault 65. The error in the response came first and has ended the call."""
    connection, call = begun()
    first, used = GIVEN_UP[name]
    within, beyond = body(WINDOW - used), data(1, b"x")
    if together:
        connection.receive(first + within)
    else:
        connection.receive(first)
        for start in range(0, len(within), 1000):
            connection.receive(within[start : start + 1000])
    assert codes(connection) == ["RST_STREAM 1 CANCEL"]
    outcome = call.outcome
    assert outcome is not None
    connection.receive(beyond)
    assert codes(connection) == ["RST_STREAM 1 CANCEL", "RST_STREAM 1 FLOW_CONTROL_ERROR"]
    # Once is enough: more of it costs the budget of late frames.
    connection.receive(beyond * 10)
    assert codes(connection) == ["RST_STREAM 1 CANCEL", "RST_STREAM 1 FLOW_CONTROL_ERROR"]
    assert (connection.failure, call.outcome) == (None, outcome)


@pytest.mark.parametrize(
    "end", [trailers(1), data(1, b"", end=True), frame(RST_STREAM, 0, 1, bytes(4))], ids=["trailers", "DATA", "reset"]
)
def test_the_end_of_a_stream_ends_its_account(end: bytes) -> None:
    """Section 5.1: the peer has closed it, too, is told so once, and pays with the budget of late frames."""
    connection, call = begun()
    call.cancel(CallOutcome(Status.CANCELLED))
    connection.receive(headers(1) + end)
    assert connection.sender.abandoned == {}
    connection.receive(body(WINDOW) + data(1, b"x"))
    assert codes(connection) == ["RST_STREAM 1 CANCEL", "RST_STREAM 1 STREAM_CLOSED"]


def test_the_windows_of_the_last_calls_that_were_cancelled_are_kept_and_no_more() -> None:
    """A connection that cancels calls for ever needs no more memory for that."""
    connection, call = begun()
    call.cancel(CallOutcome(Status.CANCELLED))
    for _ in range(MAX_ABANDONED):
        another = ClientCall(connection.sender, unary=True)
        connection.sender.open(another, HEAD, end=True)
        another.cancel(CallOutcome(Status.CANCELLED))
    assert len(connection.sender.abandoned) == MAX_ABANDONED
    assert 1 not in connection.sender.abandoned
    connection.outgoing.clear()
    connection.receive(body(WINDOW) + data(1, b"x"))
    assert codes(connection) == ["RST_STREAM 1 STREAM_CLOSED"]
    assert len(connection.sender.abandoned) == MAX_ABANDONED
    last = max(connection.sender.abandoned)
    connection.receive(b"".join(data(last, bytes(16_384)) for _ in range(4)))
    assert codes(connection) == ["RST_STREAM 1 STREAM_CLOSED", f"RST_STREAM {last} FLOW_CONTROL_ERROR"]


def stream_in(state: str) -> ClientConnection:
    """A connection whose stream 1 is in a state of section 5.1."""
    connection = ClientConnection(WireLimits(stream_window=WINDOW), HeaderCache())
    connection.receive(HELLO)
    call = ClientCall(connection.sender, unary=False)
    if state != "idle":
        connection.sender.open(call, HEAD, end=state not in ("open", "ended by the peer first"))
    if state in ("ended by both", "ended by the peer first"):
        connection.receive(answer(1))
    elif state == "reset by the peer":
        connection.receive(headers(1) + frame(RST_STREAM, 0, 1, bytes(4)))
    elif state == "reset by us":
        connection.sender.reset(call)
    elif state == "reset by us for its fault":
        connection.receive(frame(WINDOW_UPDATE, 0, 1, bytes(4)))
    connection.outgoing.clear()
    return connection


#: A frame of each type on stream 1.
FRAMES = {
    "DATA": data(1, b""),
    "HEADERS": headers(1),
    "PRIORITY": frame(PRIORITY, 0, 1, bytes(5)),
    "RST_STREAM": frame(RST_STREAM, 0, 1, bytes(4)),
    "PUSH_PROMISE": frame(PUSH_PROMISE, END_HEADERS, 1, WORD.pack(2) + RESPONSE),
    "WINDOW_UPDATE": frame(WINDOW_UPDATE, 0, 1, WORD.pack(1)),
    "CONTINUATION": frame(CONTINUATION, END_HEADERS, 1, RESPONSE),
}
#: The answers in each state. No answer means that the frame is taken, or dropped where the stream is over.
FORBIDDEN = dict.fromkeys(("PUSH_PROMISE", "CONTINUATION"), "GOAWAY PROTOCOL_ERROR")
IDLE = dict.fromkeys(("DATA", "HEADERS", "RST_STREAM", "WINDOW_UPDATE"), "GOAWAY PROTOCOL_ERROR")
CLOSED = dict.fromkeys(("DATA", "HEADERS"), "RST_STREAM 1 STREAM_CLOSED")
ANSWERS = {
    "idle": IDLE,
    "open": {"DATA": "RST_STREAM 1 PROTOCOL_ERROR"},
    "ended by us": {"DATA": "RST_STREAM 1 PROTOCOL_ERROR"},
    "ended by the peer first": CLOSED,
    "ended by both": CLOSED,
    "reset by the peer": CLOSED,
    "reset by us": {},
    "reset by us for its fault": {},
}


@pytest.mark.parametrize("said", FRAMES)
@pytest.mark.parametrize("state", ANSWERS)
def test_each_frame_is_answered_as_the_state_of_its_stream_demands(state: str, said: str) -> None:
    """Section 5.1. In the states that are not over, DATA comes before the headers of the response."""
    connection = stream_in(state)
    connection.receive(FRAMES[said])
    wanted = {**ANSWERS[state], **FORBIDDEN}.get(said)
    assert codes(connection) == ([wanted] if wanted else [])
    assert (connection.failure is not None) is (wanted is not None and wanted.startswith("GOAWAY"))


@pytest.mark.parametrize("said", ["DATA", "HEADERS"])
def test_a_peer_that_goes_on_with_a_closed_stream_is_told_once_and_then_loses_its_connection(said: str) -> None:
    """Fault 60: each frame costs the budget of late frames, and one is answered."""
    connection, _ = begun(WireLimits(late_frames=50))
    connection.receive(answer(1))
    connection.outgoing.clear()
    connection.receive(FRAMES[said] * 50)
    assert codes(connection) == ["RST_STREAM 1 STREAM_CLOSED"]
    connection.receive(FRAMES[said])
    assert codes(connection) == ["RST_STREAM 1 STREAM_CLOSED", "GOAWAY ENHANCE_YOUR_CALM"]


def test_a_peer_that_reads_nothing_is_not_told_of_ever_more_closed_streams() -> None:
    """Fault 65: no more than what fits one frame waits for it."""
    connection, call = begun(WireLimits(late_frames=4096, stream_window=WINDOW))
    call.cancel(CallOutcome(Status.CANCELLED))
    for _ in range(2000):
        another = ClientCall(connection.sender, unary=True)
        connection.sender.open(another, HEAD, end=True)
        connection.receive(frame(RST_STREAM, 0, another.id, bytes(4)))
        connection.budgets.replenish()
    connection.outgoing.clear()
    for number in range(2000):
        connection.receive(data(2 * number + 1, b"x"))
    assert connection.failure is None
    assert 16_384 < len(connection.outgoing) < 16_384 + 20
