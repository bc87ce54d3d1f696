"""The rules of gRPC that need no socket: fields, messages, flow control of unread messages, limits."""

import pytest

from plugind.protocol.wire.errors import WireError, WireProblem
from plugind.protocol.wire.frames import literal_field
from plugind.protocol.wire.grpc import ClientCall, frame_message, request_head, timeout_field
from plugind.protocol.wire.http2 import ClientConnection
from plugind.protocol.wire.limits import WireLimits
from plugind.protocol.wire.metadata import decode_metadata
from plugind.protocol.wire.outcomes import decode_message
from plugind.tests.wire.hostile import HELLO

HEAD = request_head("/a.B/C", "localhost")


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.0000001, b"1u"),
        (0.001, b"1000u"),
        (1.5, b"1500000u"),
        (99.999999, b"99999999u"),
        (100.0, b"100000m"),
        (100_000.0, b"100000S"),
        (1e9, b"16666667M"),
        (1e13, b"99999999H"),
    ],
)
def test_a_deadline_is_written_in_at_most_eight_digits_and_never_too_short(seconds: float, written: bytes) -> None:
    assert timeout_field(seconds) == literal_field(b"grpc-timeout", written)


@pytest.mark.parametrize(
    ("sent", "meant"),
    [("plain", "plain"), ("%E2%9C%93", "✓"), ("100%", "100%"), ("%zz", "%zz"), ("%ff", "\ufffd"), ("a%0Ab", "a\nb")],
)
def test_a_message_is_percent_decoded_and_invalid_encoding_stays(sent: str, meant: str) -> None:
    assert decode_message(sent) == meant


def test_metadata_leaves_out_grpcs_own_fields_and_invalid_base64() -> None:
    fields = [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("user-agent", "grpc-c/1.0"),
        ("grpc-status", "0"),
        ("x", "y"),
        ("b-bin", "AAE"),
        ("b-bin", "AAE=,/w"),
        ("bad-bin", "!"),
        ("bad-bin", "A"),
    ]
    assert decode_metadata(fields) == [("x", "y"), ("b-bin", b"\0\1"), ("b-bin", b"\0\1"), ("b-bin", b"\xff")]


def test_each_period_fills_the_budgets_of_frames() -> None:
    """Fault 54: keep-alive over days is not a flood."""
    connection = ClientConnection(WireLimits(pings=2))
    ping = b"\0\0\x08\x06\0\0\0\0\0" + bytes(8)
    connection.receive(HELLO)
    for _ in range(1000):
        connection.receive(ping * 2)
        connection.budgets.replenish()
        connection.outgoing.clear()
    assert connection.failure is None
    connection.receive(ping * 3)
    assert isinstance(connection.failure, WireError)
    assert connection.failure.problem is WireProblem.PINGS


def test_pings_for_our_own_data_cost_no_budget() -> None:
    """Fault 54: a server of grpc-go sends one for each request, to measure how long a round trip takes."""
    connection = ClientConnection(WireLimits(pings=3))
    connection.receive(HELLO)
    ping = b"\0\0\x08\x06\0\0\0\0\0" + bytes(8)
    for number in range(1000):
        call = ClientCall(connection.sender, unary=True)
        if number % 2:
            assert connection.sender.request(call, HEAD, frame_message(b"x"))
        else:
            connection.sender.open(call, HEAD)
            connection.sender.send(call, frame_message(b"x"), end=True)
        connection.outgoing.clear()
        connection.receive(ping)
        connection.outgoing.clear()
        connection.sender.reset(call)
        connection.outgoing.clear()
    assert connection.failure is None
    connection.receive(ping * 4)
    assert isinstance(connection.failure, WireError)
    assert connection.failure.problem is WireProblem.PINGS


def test_a_peer_that_never_reads_answers_to_its_pings_loses_its_connection() -> None:
    """Fault 65: otherwise the unsent answers would grow for days, within every budget."""
    connection = ClientConnection()
    connection.receive(HELLO)
    rounds = 0
    while connection.failure is None:
        connection.receive(b"\0\0\x08\x06\0\0\0\0\0" + bytes(8))
        connection.budgets.replenish()
        rounds += 1
    assert rounds <= 1001
    assert connection.failure.message.startswith("acknowledgements that the peer does not read over the limit")


def test_window_updates_for_our_own_data_cost_no_budget() -> None:
    """A server may answer each DATA frame with two of them, however large the upload."""
    connection = ClientConnection(WireLimits(window_updates=5))
    call = ClientCall(connection.sender, unary=True)
    connection.sender.open(call, HEAD)
    connection.receive(HELLO)
    body = memoryview(frame_message(b"x" * 2_000_000))
    while body:
        sent = connection.sender.send(call, body, end=True)
        body = body[sent:]
        for _ in range(-(-sent // 16_384)):
            for stream in (b"\0\0\0\0", b"\0\0\0\1"):
                connection.receive(b"\0\0\4\x08\0" + stream + (16_384).to_bytes(4, "big"))
    assert connection.failure is None
