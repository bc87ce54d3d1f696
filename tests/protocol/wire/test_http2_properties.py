"""Properties of the client half of HTTP/2: h2 is the oracle in both directions, and no bytes cause an untyped error."""

import itertools
import random

import h2.config
import h2.connection
import h2.events
import hpack
from hypothesis import given, settings
from hypothesis import strategies as st

from plugind.protocol.wire.grpc import ClientCall, frame_message, metadata_fields, request_head, timeout_field
from plugind.protocol.wire.hpack_cache import HeaderCache, HeaderReader
from plugind.protocol.wire.http2 import ClientConnection
from plugind.tests.tools.fuzz_wire import LIMITS, check_mutant, mutate, pieces
from plugind.tests.tools.wire_streams import generate, read_by_us

seeds = st.integers(0, 2**32)


@settings(max_examples=15, deadline=None)
@given(seeds)
def test_any_cut_of_a_valid_stream_gives_the_events_that_h2_gives(seed: int) -> None:
    generated = generate(seed, LIMITS)
    cache = HeaderCache()
    for chance in (random.Random(seed), random.Random(seed + 1)):
        read = read_by_us(generated.data, pieces(chance), generated.requests, LIMITS, cache)
        assert read.failure is None
        assert read.events == generated.expected
    one_by_one = read_by_us(generated.data[:3000], itertools.repeat(1), generated.requests, LIMITS, cache)
    at_once = read_by_us(generated.data[:3000], itertools.repeat(3000), generated.requests, LIMITS, cache)
    assert one_by_one.events == at_once.events


@settings(max_examples=10, deadline=None)
@given(seeds)
def test_a_mutant_ends_the_same_way_however_it_is_cut_and_only_in_typed_errors(seed: int) -> None:
    """Fault 65."""
    chance = random.Random(seed)
    generated = generate(seed, LIMITS)
    for _ in range(5):
        check_mutant(mutate(generated.data, chance), generated.requests, chance, HeaderCache())


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_end_in_typed_errors(data: bytes, hello: bool) -> None:
    """Fault 66: from the first byte, or after valid ones."""
    check_mutant((b"\0\0\0\4\0\0\0\0\0" if hello else b"") + data, 2, random.Random(1), HeaderCache())


names = st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyz0123456789-_."), min_size=1, max_size=30)
texts = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=200)


@settings(max_examples=60, deadline=None)
@given(
    path=texts,
    metadata=st.lists(st.tuples(names.map("x-{}".format).filter(lambda n: not n.endswith("-bin")), texts), max_size=5),
    messages=st.lists(st.binary(max_size=70_000), min_size=1, max_size=3),
    large=st.integers(0, 40_000),
)
def test_h2_reads_what_we_write(path: str, metadata: list[tuple[str, str]], messages: list[bytes], large: int) -> None:
    """Several requests share one connection, some with header blocks larger than a frame; h2 checks every rule."""
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
    server.initiate_connection()
    connection = ClientConnection()
    connection.receive(server.data_to_send())
    sent = [*metadata, ("x-large", "v" * large + "v")]
    head = request_head("/" + path, "localhost") + timeout_field(2.5) + metadata_fields(sent)
    for message in messages:
        call = ClientCall(connection.sender, unary=True)
        connection.sender.open(call, head)
        body = memoryview(frame_message(message))
        got, fields = bytearray(), None
        while call.local_open:
            body = body[connection.sender.send(call, body, end=True) :]
            events = server.receive_data(bytes(connection.outgoing))
            connection.outgoing.clear()
            for event in events:
                if isinstance(event, h2.events.RequestReceived):
                    fields = [(str(name), str(value)) for name, value in event.headers]
                elif isinstance(event, h2.events.DataReceived):
                    got += event.data
                    if event.flow_controlled_length:
                        server.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            connection.receive(server.data_to_send())
        assert fields == [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/" + path),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "grpc-python-plugind"),
            ("grpc-timeout", "2500000u"),
            *sent,
        ]
        assert bytes(got) == frame_message(message)
        assert connection.failure is None
        server.send_headers(
            call.id, [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "5")], True
        )
        connection.receive(server.data_to_send())
        assert call.outcome is not None


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_the_fast_path_of_header_blocks_is_exact(seed: int) -> None:
    """RFC 7541: many connections share one cache, and each block is decoded as by an uncached decoder.

    Table sizes change, entries are evicted, and blocks repeat in different states of the table.
    """
    chance = random.Random(seed)
    cache = HeaderCache()
    for _ in range(12):
        encoder, decoder, reader = hpack.Encoder(), hpack.Decoder(), HeaderReader(65_536, cache)
        for _ in range(12):
            if chance.random() < 0.2:
                encoder.header_table_size = chance.choice((0, 64, 100, 4096))
            fields = [
                hpack.HeaderTuple(f"x-{chance.randrange(3)}", str(chance.randrange(4)) * chance.choice((1, 1, 40)))
                for _ in range(chance.randrange(4))
            ]
            block = encoder.encode(fields, huffman=chance.random() < 0.5)
            assert reader.read(block).fields == tuple((str(n), str(v)) for n, v in decoder.decode(block))
