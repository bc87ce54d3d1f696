"""What a peer may send for one registration call: frames, header work and bytes have a budget each."""

from __future__ import annotations

import struct

import pytest

from plugind.protocol.wire.errors import ErrorCode, WireProblem
from plugind.protocol.wire.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    MAX_STREAM_ID,
    PADDED,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    WINDOW_UPDATE,
    frame,
)
from plugind.protocol.wire.grpc import ClientCall, request_head
from plugind.protocol.wire.hpack_cache import HeaderCache
from plugind.protocol.wire.http2 import ClientConnection
from plugind.protocol.wire.limits import REGISTRATION_LIMITS, WireLimits
from plugind.tests.wire.hostile import HELLO, RESPONSE, answer, continued, data, fields, headers, message

HEAD = request_head("/pluginregistration.Registration/GetInfo", "localhost")
#: A message whose end never comes.
BEGUN = headers(1) + data(1, struct.pack(">BI", 0, 60_000))


def begun(limits: WireLimits = REGISTRATION_LIMITS) -> tuple[ClientConnection, ClientCall]:
    connection = ClientConnection(limits, HeaderCache())
    return connection, begin(connection)


def begin(connection: ClientConnection) -> ClientCall:
    call = ClientCall(connection.sender, unary=True)
    assert connection.sender.request(call, HEAD, message(b""))
    connection.outgoing.clear()
    return call


def sent_until_refused(connection: ClientConnection, again: bytes, most: int) -> int:
    """Send ``again`` until the connection is over; return how often, which is at most ``most`` times."""
    for count in range(1, most + 1):
        connection.receive(again)
        if connection.failure is not None:
            return count
    raise AssertionError(f"{most} of them were accepted")


def word(number: int) -> bytes:
    return struct.pack(">I", number)


#: What is sent first, what is sent again and again, the budget that ends it, and how many of the latter are too many.
FLOODS = {
    "fault 56: DATA of one byte": (BEGUN, data(1, b"x"), WireProblem.CALL_FRAMES, 254),
    "fault 56: padded DATA": (BEGUN, frame(DATA, PADDED, 1, b"\x08x" + bytes(8)), WireProblem.CALL_FRAMES, 254),
    "fault 56: empty DATA": (BEGUN, frame(DATA, 0, 1), WireProblem.EMPTY_DATA, 101),
    "fault 58: WINDOW_UPDATE": (b"", frame(WINDOW_UPDATE, 0, 1, word(1)), WireProblem.CALL_FRAMES, 256),
    # One more than without a request: a server may answer each DATA frame with one.
    "fault 54: PING": (b"", frame(PING, 0, 0, bytes(8)), WireProblem.PINGS, 102),
    "fault 55: SETTINGS": (b"", HELLO, WireProblem.SETTINGS, 32),
    "fault 55: SETTINGS of 2,730 entries": (
        b"",
        frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 100) * 2730),
        WireProblem.SETTINGS_ENTRIES,
        1,
    ),
    "fault 58: PRIORITY": (b"", frame(PRIORITY, 0, 1, bytes(5)), WireProblem.PRIORITIES, 101),
    "fault 58: unknown frames": (b"", frame(0xBE, 0, 1), WireProblem.UNKNOWN_FRAMES, 101),
    "fault 58: large unknown frames": (b"", frame(0xBE, 0, 1, bytes(16_000)), WireProblem.CALL_BYTES, 17),
    "fault 60: RST_STREAM of a call that is over": (
        frame(RST_STREAM, 0, 1, word(8)),
        frame(RST_STREAM, 0, 1, word(8)),
        WireProblem.RESETS,
        101,
    ),
    "fault 57: 1xx": (b"", headers(1, fields((":status", "103"))), WireProblem.INFORMATIONAL, 17),
    "fault 57: 1xx with Huffman blocks": (
        b"",
        headers(1, fields((":status", "103"), ("x", "a" * 12_000))),
        WireProblem.CALL_HEADER_BYTES,
        2,
    ),
    "fault 61: 1xx of fields of one byte": (
        b"",
        headers(1, fields((":status", "103")) + b"\x90" * 300),
        WireProblem.CALL_HEADER_BYTES,
        2,
    ),
    "fault 54: PING that answers": (b"", frame(PING, ACK, 0, bytes(8)), WireProblem.PINGS, 102),
    "fault 55: SETTINGS that answer": (b"", SETTINGS_ACK, WireProblem.SETTINGS, 32),
    "fault 58: WINDOW_UPDATE of the connection": (
        b"",
        frame(WINDOW_UPDATE, 0, 0, word(1)),
        WireProblem.CALL_FRAMES,
        256,
    ),
    "fault 60: GOAWAY": (b"", frame(GOAWAY, 0, 0, word(MAX_STREAM_ID) + bytes(4)), WireProblem.RESETS, 101),
    "fault 53: a block in many parts": (
        frame(HEADERS, 0, 1, RESPONSE),
        frame(CONTINUATION, 0, 1),
        WireProblem.CONTINUATIONS,
        17,
    ),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_ends_at_a_budget_and_the_reason_names_it(flood: str) -> None:
    """Faults 53 to 61, as each case says: the peer is told ENHANCE_YOUR_CALM, and the call why it failed."""
    first, again, problem, most = FLOODS[flood]
    connection, call = begun()
    connection.receive(HELLO + first)
    assert connection.failure is None
    assert sent_until_refused(connection, again, 1000) == most
    assert connection.failure is not None
    assert connection.failure.problem is problem
    assert f"(limit {problem.value})" in connection.failure.message
    assert connection.outgoing.endswith(frame(GOAWAY, 0, 0, word(0) + word(ErrorCode.ENHANCE_YOUR_CALM)))
    if not first.startswith(frame(RST_STREAM, 0, 1, word(8))):
        assert call.outcome is not None
        assert (call.outcome.status.name, call.outcome.cause) == ("RESOURCE_EXHAUSTED", connection.failure)


def test_a_block_over_the_budget_is_not_decoded_further() -> None:
    """Fault 61: 800 entries of the static table in 801 bytes, of which there is room for some."""
    connection, _ = begun(WireLimits(call_header_bytes=2000))
    connection.receive(HELLO + headers(1, b"\x88" + b"\x90" * 800))
    assert connection.failure is not None
    what = "bytes of headers for one call"
    assert connection.failure.message == f"{what} over the limit of 2000 (limit call_header_bytes)"


def test_a_large_table_makes_each_block_dearer() -> None:
    """Fault 61: a table of 100 entries is filled again for each block that is decoded."""
    connection, _ = begun()
    entries = b"".join(b"\x40\x01x\x02%02d" % number for number in range(100))
    connection.receive(HELLO + continued(1, [b"\x88" + entries, b""]))
    before = connection.budgets.header_bytes_left
    connection.receive(frame(HEADERS, END_HEADERS, 1, b"\x88\xbe"))
    assert before - connection.budgets.header_bytes_left >= 100 * 32


def test_each_call_has_its_own_budgets() -> None:
    """What GetInfo has used is not charged to NotifyRegistrationStatus on the same connection."""
    connection = ClientConnection(WireLimits(call_frames=5, call_header_bytes=300, call_bytes=300), HeaderCache())
    connection.receive(HELLO)
    for number in range(1, 20, 2):
        call = begin(connection)
        connection.receive(answer(number)[:-1])
        connection.receive(answer(number)[-1:])
        assert connection.failure is None
        assert call.outcome is not None
        assert call.outcome.status.name == "OK"


def test_a_stream_may_run_for_ever_with_the_general_limits() -> None:
    """Only a registration's connection has budgets for a call: ``WireLimits()`` has none (fault 64)."""
    connection = ClientConnection(WireLimits(), HeaderCache())
    call = ClientCall(connection.sender, unary=False)
    connection.sender.open(call, HEAD, end=True)
    connection.receive(HELLO + headers(1))
    for _ in range(3000):
        connection.receive(data(1, message(b"x" * 1000)))
        assert call.take() == b"x" * 1000
    assert connection.failure is None


@pytest.mark.parametrize(
    ("limits", "again", "problem", "most"),
    [
        (WireLimits(empty_data=3), frame(DATA, PADDED, 1, b"\x01\0"), WireProblem.EMPTY_DATA, 4),
        (WireLimits(small_data=3), data(1, b"x"), WireProblem.SMALL_DATA, 4),
        (WireLimits(small_data=3), frame(DATA, PADDED, 1, b"\x80" + b"x" * 63 + bytes(128)), WireProblem.SMALL_DATA, 4),
        (WireLimits(), frame(WINDOW_UPDATE, 0, 0, word(1)), WireProblem.WINDOW_UPDATES, 1003),
        (WireLimits(), frame(WINDOW_UPDATE, 0, 1, word(1)), WireProblem.WINDOW_UPDATES, 1003),
    ],
)
def test_a_flood_ends_without_budgets_for_a_call(
    limits: WireLimits, again: bytes, problem: WireProblem, most: int
) -> None:
    """Faults 56 and 58: padding is no content; a server may answer the request's DATA frame with two WINDOW_UPDATEs."""
    connection, _ = begun(limits)
    connection.receive(HELLO + headers(1))
    assert sent_until_refused(connection, again, 2000) == most
    assert connection.failure is not None
    assert connection.failure.problem is problem


def test_a_message_over_64_kib_is_refused_by_its_prefix() -> None:
    """Fault 50: the first five bytes are enough, and nothing of it is kept."""
    connection, call = begun()
    connection.receive(HELLO + headers(1) + data(1, struct.pack(">BI", 0, 64 * 1024 + 1) + b"x" * 1000))
    assert call.outcome is not None
    assert call.outcome.message == "a message of 65537 bytes over the limit of 65536 (limit message_bytes)"
    assert connection.failure is None
    assert connection.outgoing.endswith(frame(RST_STREAM, 0, 1, word(ErrorCode.CANCEL)))


def test_a_message_of_64_kib_passes_within_all_budgets() -> None:
    """In frames of a kilobyte, which is less than any server sends."""
    connection, call = begun()
    body = message(b"x" * 64 * 1024)
    connection.receive(HELLO + headers(1))
    for start in range(0, len(body), 1024):
        connection.receive(data(1, body[start : start + 1024]))
    connection.receive(headers(1, fields(("grpc-status", "0")), end=True))
    assert call.outcome is not None
    assert call.outcome.status.name == "OK"
    assert len(call.take()) == 64 * 1024
