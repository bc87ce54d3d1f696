"""Responses that are recognized by their bytes have the same effect as when they are taken frame by frame."""

import itertools
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugind.protocol.wire.frames import DATA, END_HEADERS, END_STREAM, PADDED, frame
from plugind.protocol.wire.grpc import ClientCall
from plugind.protocol.wire.hpack_cache import HeaderCache
from plugind.protocol.wire.http2 import ClientConnection
from plugind.protocol.wire.limits import WireLimits
from plugind.protocol.wire.outcomes import SUCCESS
from plugind.tests.tools.fuzz_wire import mutate
from plugind.tests.tools.wire_streams import HEAD, plain_response
from plugind.tests.wire.hostile import HELLO, RESPONSE, data, fields, headers, message, trailers

LIMITS = (
    WireLimits(),
    WireLimits(),
    WireLimits(message_bytes=4),
    WireLimits(settings=1),
    WireLimits(header_list_bytes=60),
    WireLimits(connection_window=65_535),
    WireLimits(total_bytes=200),
    WireLimits(small_data=2),
)


class Slow(ClientConnection):
    """A connection that recognizes no responses."""

    def _take_response(self, data: bytes, start: int) -> int:
        del data
        return start


class Counting(ClientConnection):
    """A connection that counts the responses that it recognized."""

    hits = 0

    def _take_response(self, data: bytes, start: int) -> int:
        end = super()._take_response(data, start)
        self.hits += end > start
        return end


def begin(connection: ClientConnection, *, unary: bool, ended: bool) -> list[ClientCall]:
    calls = [ClientCall(connection.sender, unary=unary) for _ in range(3)]
    for call in calls:
        connection.sender.open(call, HEAD, end=ended)
    return calls


def state_of(connection: ClientConnection, calls: list[ClientCall]) -> list[object]:
    """Return everything that later bytes or a caller could distinguish."""
    table = connection._headers.state
    failure = connection.failure
    seen: list[object] = [
        connection.settled,
        connection.sender.max_streams,
        connection.sender.max_frame,
        connection.sender.send_window,
        connection._receive_window,
        bytes(connection.outgoing),
        connection.budgets.counted,
        connection.budgets.spent if failure is None else None,
        sorted(connection.sender.streams),
        (table.entries, table.max_size),
        failure and (failure.problem, failure.message),
        set(connection.touched) and [call.id for call in calls if call in connection.touched],
    ]
    for call in calls:
        outcome = call.outcome and (call.outcome.status, call.outcome.message)
        flags = call.local_open, call.remote_open, call.head_done
        heads = [block and block.fields for block in (call.head, call.trailers)]
        window = call.send_window if call.local_open else None
        seen += [outcome, flags, heads, list(call.messages or ()), call._queued, call._uncredited, window]
    return seen


def conversation(chance: random.Random) -> Iterator[bytes]:
    """The responses to some requests: most are plain, a few are not. Some come in one piece."""
    piece = b""
    for number in range(3):
        response = plain_response(chance, 2 * number + 1, greeting=number == 0)
        piece += mutate(response, chance) if chance.random() < 0.15 else response
        if number == 2 or chance.random() < 0.6:
            yield piece
            piece = b""


def compare(seed: int) -> int:
    """Compare connections that share a cache with others that have none. Return how many responses were recognized."""
    chance = random.Random(seed)
    cache = HeaderCache()
    hits = 0
    for _ in range(25):
        limits, unary, ended = chance.choice(LIMITS), chance.random() < 0.7, chance.random() < 0.9
        fast, slow = Counting(limits, cache), Slow(limits, HeaderCache())
        fast_calls = begin(fast, unary=unary, ended=ended)
        slow_calls = begin(slow, unary=unary, ended=ended)
        for part in conversation(chance):
            fast.receive(part)
            slow.receive(part)
            assert state_of(fast, fast_calls) == state_of(slow, slow_calls)
        hits += fast.hits
    return hits


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_a_recognized_response_has_the_same_effect_as_its_frames(seed: int) -> None:
    compare(seed)


def test_recognized_responses_are_among_those_compared() -> None:
    assert sum(compare(seed) for seed in range(10)) > 40


OK = headers(1) + data(1, message(b"x")) + trailers(1)


def learnt(response: bytes = HELLO + OK) -> HeaderCache:
    cache = HeaderCache()
    for expected in (0, 1):
        connection = Counting(cache=cache)
        begin(connection, unary=True, ended=True)
        connection.receive(response)
        assert connection.hits == expected
    return cache


TYPE = (":status", "200"), ("content-type", "application/grpc")


def hits_of(cache: HeaderCache, response: bytes, limits: WireLimits | None = None) -> int:
    connection = Counting(limits or WireLimits(), cache)
    begin(connection, unary=True, ended=True)
    connection.receive(response)
    return connection.hits


def test_a_connection_adds_at_most_two_responses_to_the_cache() -> None:
    """Fault 65."""
    cache = HeaderCache()
    parts = [HELLO, *(headers(n) + data(n, message(b"x")) + trailers(n) for n in (1, 3, 5))]
    hits = list[list[bool]]()
    for _ in range(4):
        connection = Counting(cache=cache)
        begin(connection, unary=True, ended=True)
        counted = list[int]()
        for part in parts:
            connection.receive(part)
            counted.append(connection.hits)
        hits.append([after > before for before, after in itertools.pairwise(counted)])
    # The first connection adds the responses to streams 1 and 3, and the second one that to stream 5.
    assert hits == [[False, False, False], [True, True, False], [True, True, True], [True, True, True]]


@pytest.mark.parametrize(("size", "hits"), [(2048, 1), (2049, 0)])
def test_a_response_of_more_than_2048_bytes_is_not_remembered(size: int, hits: int) -> None:
    """Fault 65."""
    start, end = HELLO + headers(1), trailers(1)
    response = start + data(1, message(b"x" * (size - len(start) - len(end) - 14))) + end
    assert len(response) == size
    cache = HeaderCache()
    assert hits_of(cache, response) == 0
    assert hits_of(cache, response) == hits


def test_a_response_at_the_limits_of_a_connection_is_recognized_and_one_above_is_not() -> None:
    cache = learnt()
    response = HELLO + headers(1) + data(1, message(b"four")) + trailers(1)
    # As RFC 7541 section 4.1 counts: each name, its value and 32 bytes.
    list_bytes = sum(len(name) + len(value) + 32 for name, value in TYPE)
    # With gRPC's five bytes, one of these messages fills the largest frame.
    for size, hits in ((16_379, 1), (16_380, 0)):
        assert hits_of(cache, HELLO + headers(1) + data(1, message(bytes(size))) + trailers(1)) == hits
    assert hits_of(cache, response, WireLimits(message_bytes=4)) == 1
    assert hits_of(cache, response, WireLimits(message_bytes=3)) == 0
    assert hits_of(cache, response, WireLimits(header_list_bytes=list_bytes)) == 1
    assert hits_of(cache, response, WireLimits(header_list_bytes=list_bytes - 1)) == 0


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(frame(DATA, PADDED, 1, b"\1" + message(b"x") + b"\0"), id="padded"),
        pytest.param(data(3, message(b"x")), id="of another stream"),
    ],
)
def test_a_response_with_unusual_data_is_not_remembered(body: bytes) -> None:
    cache = HeaderCache()
    for _ in range(2):
        assert hits_of(cache, HELLO + headers(1) + body + trailers(1)) == 0
    assert not cache.root.prefixes


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(headers(1, fields(("grpc-status", "0"))), id="that do not end the stream"),
        pytest.param(trailers(3), id="of another stream"),
        pytest.param(trailers(1, RESPONSE), id="with a status of HTTP"),
        pytest.param(frame(DATA, END_HEADERS | END_STREAM, 1, fields(("grpc-status", "0"))), id="that are data"),
    ],
)
def test_a_response_with_unusual_trailers_is_not_remembered(end: bytes) -> None:
    """Fault 68: its blocks and the bytes before its message are in the cache."""
    cache = learnt()
    size = len(cache)
    for _ in range(2):
        connection = Counting(cache=cache)
        call = begin(connection, unary=True, ended=True)[0]
        connection.receive(HELLO + headers(1) + data(1, message(b"x")) + end)
        assert connection.failure is None
        assert connection.hits == 0
        assert call.outcome is not SUCCESS
    assert len(cache) == size


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(OK, id="without the SETTINGS that must come first"),
        pytest.param(HELLO + headers(1) + data(1, message(b"x"))[:-1], id="cut in the message"),
        pytest.param(HELLO + OK[:-1], id="cut in the trailers"),
        pytest.param(HELLO + headers(1) + data(3, message(b"x")) + trailers(1), id="with a message of another call"),
        pytest.param(HELLO + headers(1) + data(1, message(b"x"), end=True) + trailers(1), id="ended before trailers"),
        pytest.param(HELLO + headers(1) + data(1, b"\1\0\0\0\1x") + trailers(1), id="compressed"),
        pytest.param(HELLO + headers(1) + data(1, b"\0\0\0\0\2x") + trailers(1), id="half a message"),
        pytest.param(HELLO + headers(1) + data(1, b"\0\0\0\0\0x") + trailers(1), id="more than a message"),
        pytest.param(HELLO + headers(1) + data(1, message(b"x" * 16_380)) + trailers(1), id="a frame too large"),
        pytest.param(HELLO + headers(1) + frame(2, 0, 1, b"\0\0\0\0\5xxxxx") + trailers(1), id="no DATA frame"),
    ],
)
def test_data_that_only_resembles_a_cached_response_is_taken_frame_by_frame(response: bytes) -> None:
    """Faults 65 to 70."""
    fast, slow = Counting(cache=learnt()), Slow(cache=HeaderCache())
    fast_calls, slow_calls = (begin(connection, unary=True, ended=True) for connection in (fast, slow))
    fast.receive(response)
    slow.receive(response)
    assert fast.hits == 0
    assert state_of(fast, fast_calls) == state_of(slow, slow_calls)


#: Three responses, of which none announces a new state of the table.
THREE = [headers(n) + data(n, message(b"x")) + trailers(n) for n in (1, 3, 5)]


@pytest.mark.parametrize(
    ("response", "hits"),
    [
        pytest.param(HELLO + b"".join(THREE), 3, id="in order"),
        pytest.param(HELLO + THREE[0] + THREE[2] + THREE[1], 3, id="in another order"),
        pytest.param(HELLO + THREE[0] + THREE[1] + b"\0", 2, id="with a part of a frame after them"),
        pytest.param(HELLO + THREE[0] + THREE[1] + THREE[2][:-3], 2, id="the last one is cut"),
        pytest.param(HELLO + THREE[0] + HELLO + THREE[1], 1, id="with a frame between them"),
        pytest.param(HELLO + THREE[0] + THREE[0] + THREE[1], 1, id="one of them twice"),
        pytest.param(HELLO + THREE[0] + frame(DATA, 0, 3, b"x") + THREE[2], 1, id="with an error between them"),
    ],
)
def test_several_responses_in_one_piece_are_recognized_as_far_as_they_are_plain(response: bytes, hits: int) -> None:
    cache = HeaderCache()
    for _ in range(3):
        for piece in (*THREE, b""):
            connection = ClientConnection(cache=cache)
            begin(connection, unary=True, ended=True)
            connection.receive(HELLO)
            connection.receive(piece)
        connection = ClientConnection(cache=cache)
        begin(connection, unary=True, ended=True)
        connection.receive(HELLO + THREE[0])
    fast, slow = Counting(cache=cache), Slow(cache=HeaderCache())
    fast_calls, slow_calls = (begin(connection, unary=True, ended=True) for connection in (fast, slow))
    fast.receive(response)
    slow.receive(response)
    assert fast.hits == hits
    assert state_of(fast, fast_calls) == state_of(slow, slow_calls)


def test_a_recognized_response_with_a_small_message_costs_its_budget() -> None:
    """Fault 56."""
    cache = HeaderCache()
    for limits, expected in ((WireLimits(), 0), (WireLimits(), 2), (WireLimits(), 3), (WireLimits(small_data=3), 3)):
        assert hits_of(cache, HELLO + b"".join(THREE), limits) == expected
    fast, slow = Counting(WireLimits(small_data=2), cache), Slow(WireLimits(small_data=2), HeaderCache())
    fast_calls, slow_calls = (begin(connection, unary=True, ended=True) for connection in (fast, slow))
    for connection in (fast, slow):
        connection.receive(HELLO + b"".join(THREE))
    assert fast.hits == 2
    assert fast.failure is not None
    assert fast.failure.message == "small DATA frames over the limit of 2 (limit small_data)"
    assert state_of(fast, fast_calls) == state_of(slow, slow_calls)


def test_settings_in_recognized_responses_cost_their_budget() -> None:
    """Fault 55."""
    cache = learnt()
    connection = Counting(WireLimits(settings=1), cache)
    begin(connection, unary=True, ended=True)
    connection.receive(HELLO)
    connection.receive(HELLO + OK)
    assert connection.hits == 0
    assert connection.failure is not None
    assert connection.failure.message == "SETTINGS frames over the limit of 1 (limit settings)"


def test_recognized_responses_are_credited_to_the_connection_as_their_frames_are() -> None:
    """At less than half of the window, which here is after three responses."""
    cache = HeaderCache()
    parts = [HELLO, *(headers(n) + data(n, message(b"x" * 13_000)) + trailers(n) for n in (1, 3, 5))]
    small = [HELLO, *(headers(n) + data(n, message(b"x")) + trailers(n) for n in (1, 3, 5))]
    hits = 0
    for said in (small, small, small, parts):
        fast, slow = Counting(LIMITS[5], cache), Slow(LIMITS[5], HeaderCache())
        fast_calls, slow_calls = (begin(connection, unary=True, ended=True) for connection in (fast, slow))
        for part in said:
            fast.receive(part)
            slow.receive(part)
            assert state_of(fast, fast_calls) == state_of(slow, slow_calls)
        hits = fast.hits
    assert hits == 2, "the first two; the third is parsed frame by frame, since it needs a WINDOW_UPDATE"
