"""A turn bounds what one connection does at once, and changes nothing of what its bytes mean."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugind.protocol.wire.frames import CONTINUATION, END_HEADERS, HEADERS, PING, frame
from plugind.protocol.wire.hpack_cache import HeaderCache
from plugind.protocol.wire.http2 import ClientConnection
from plugind.protocol.wire.limits import REGISTRATION_LIMITS, WireLimits
from plugind.tests.tools.fuzz_wire import mutate, pieces
from plugind.tests.tools.wire_streams import HEAD, Recorder, Server
from plugind.tests.wire.hostile import HELLO, RESPONSE, fields, headers

PINGS = frame(PING, 0, 0, bytes(8))


def begun(limits: WireLimits = REGISTRATION_LIMITS, requests: int = 1) -> tuple[ClientConnection, list[Recorder]]:
    connection = ClientConnection(limits, HeaderCache())
    streams = [Recorder(connection.sender) for _ in range(requests)]
    for stream in streams:
        connection.sender.open(stream, HEAD, end=True)
    connection.outgoing.clear()
    return connection, streams


def handled(connection: ClientConnection) -> int:
    return (connection.limits.call_frames or 0) - connection.budgets.frames_left


def test_no_more_frames_are_handled_than_the_turn_has_room_for() -> None:
    """Fault 54: 90 PINGs in one piece take five turns of twenty frames."""
    connection, _ = begun()
    connection.receive(HELLO + PINGS * 90, 20)
    counts = [handled(connection)]
    while connection.pending:
        connection.go_on(20)
        counts.append(handled(connection))
    assert counts == [20, 40, 60, 80, 91]
    assert connection.failure is None
    connection.go_on(20)
    assert handled(connection) == 91, "there was nothing left"


def test_a_large_header_block_waits_for_a_turn_of_its_own() -> None:
    """Fault 57: it is not decoded in the turn in which it came, and alone in the next one."""
    connection, _ = begun()
    block = headers(1, fields((":status", "103"), ("x", "a" * 3000)))
    connection.receive(HELLO + block + PINGS, 128)
    assert connection.budgets.header_bytes_left == REGISTRATION_LIMITS.call_header_bytes
    assert handled(connection) == 1
    connection.go_on(128)
    assert connection.budgets.header_bytes_left < REGISTRATION_LIMITS.call_header_bytes
    assert handled(connection) == 2, "the PING waits for the next turn"
    connection.go_on(128)
    assert not connection.pending


def test_the_last_part_of_a_large_block_costs_as_much_as_all_of_it() -> None:
    """Fault 53: the block is decoded with its last part, however small that is."""
    connection, _ = begun()
    first = frame(HEADERS, 0, 1, RESPONSE) + frame(CONTINUATION, 0, 1, fields(("x", "a" * 3000)))
    connection.receive(HELLO + first)
    connection.receive(frame(CONTINUATION, END_HEADERS, 1), 128)
    assert connection.pending
    connection.go_on(128)
    assert not connection.pending
    assert connection.failure is None


def test_a_full_table_makes_each_block_cost_more_of_a_turn() -> None:
    """Fault 61: the table is filled again for each block of two bytes."""
    connection, _ = begun()
    entries = b"".join(b"\x40\x01x\x02%02d" % number for number in range(100))
    informational = fields((":status", "103"))
    connection.receive(HELLO + headers(1, informational + entries))
    connection.receive(headers(1, informational) * 3, 128)
    assert connection.pending


@pytest.mark.parametrize("turn", [1, 3, 20])
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_a_stream_means_the_same_in_turns_of_any_size(turn: int, seed: int) -> None:
    """Valid streams and broken ones, against the same connection without turns."""
    chance = random.Random(seed)
    requests = chance.randint(1, 3)
    written = Server(chance, requests, WireLimits()).write(requests)
    if chance.random() < 0.5:
        written = mutate(written, chance)
    whole, expected = begun(WireLimits(), requests)
    parted, streams = begun(WireLimits(), requests)
    cuts, position = pieces(chance), 0
    while position < len(written):
        piece = written[position : position + next(cuts)]
        position += len(piece)
        whole.receive(piece)
        parted.receive(piece, turn)
        while parted.pending:
            parted.go_on(turn)
        assert (parted.buffered, bytes(parted.outgoing)) == (whole.buffered, bytes(whole.outgoing))
        assert str(parted.failure) == str(whole.failure)
    assert [stream.events for stream in streams] == [stream.events for stream in expected]
