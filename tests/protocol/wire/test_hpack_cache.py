"""The meaning of header blocks, and the cache of blocks and of whole responses."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.wire.errors import WireError, WireProblem
from plugind.protocol.wire.frames import literal_field
from plugind.protocol.wire.hpack_cache import (
    MAX_BLOCK_BYTES,
    MAX_BLOCKS,
    MAX_PREFIX_SIZES,
    NEW_BLOCKS_PER_CONNECTION,
    Entry,
    HeaderCache,
    HeaderReader,
    ResponsePrefix,
    ResponseSuffix,
    TableState,
    interpret,
)
from plugind.tests.protocol.hypothesis_settings import examples

STATUS: Entry = (b":status", b"200")
GRPC: Entry = (b"content-type", b"application/grpc")


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ([STATUS, GRPC], ""),
        ([(b"x", b"y")], ""),
        ([], ""),
        ([(b":path", b"/")], "misplaced pseudo-header field :path"),
        ([STATUS, STATUS], "misplaced pseudo-header field :status"),
        ([GRPC, STATUS], "misplaced pseudo-header field :status"),
        ([(b":status", b"")], ":status is "),
        ([(b":status", b"20")], ":status is 20"),
        ([(b":status", b"2000")], ":status is 2000"),
        ([(b":status", b"099")], ":status is 099"),
        ([(b":status", b"100")], ""),
        ([(b":status", b"2 0")], ":status is 2 0"),
        ([(b":status", "\uff12\uff10\uff10".encode())], ":status is \uff12\uff10\uff10"),
        ([(b"", b"y")], "invalid field name "),
        ([(b"X", b"y")], "invalid field name X"),
        ([(b"x y", b"y")], "invalid field name x y"),
        ([(b"x\x1f", b"y")], "invalid field name x\\x1f"),
        ([(b"x:y", b"y")], "invalid field name x:y"),
        ([(b"x\x7f", b"y")], "invalid field name x\\x7f"),
        ([("ä".encode(), b"y")], "invalid field name ä"),
        ([(b"x!~", b"y")], ""),
        ([(b"connection", b"close")], "connection-specific field connection"),
        ([(b"proxy-connection", b"close")], "connection-specific field proxy-connection"),
        ([(b"keep-alive", b"1")], "connection-specific field keep-alive"),
        ([(b"transfer-encoding", b"chunked")], "connection-specific field transfer-encoding"),
        ([(b"upgrade", b"h2c")], "connection-specific field upgrade"),
        ([(b"x", b"a\0b")], "control character in the value of x"),
        ([(b"x", b"a\rb")], "control character in the value of x"),
        ([(b"x", b"a\nb")], "control character in the value of x"),
        ([(b"x", b"a\tb \xff")], ""),
    ],
)
def test_a_header_list_that_breaks_a_rule_of_http_is_malformed(raw: list[Entry], problem: str) -> None:
    """RFC 9113 sections 8.2 and 8.3."""
    assert interpret(raw, 0).malformed == problem


def test_the_fields_that_grpc_uses_are_looked_up_once() -> None:
    raw = [STATUS, GRPC, (b"grpc-status", b"5"), (b"grpc-message", b"no"), (b"grpc-message", b"later")]
    block = interpret(raw, 77)
    assert (block.size, block.http_status, block.malformed, block.content_type) == (77, 200, "", "application/grpc")
    assert (block.grpc_status, block.grpc_message) == ("5", "no"), "of several, the first"
    assert block.fields == tuple((name.decode(), value.decode()) for name, value in raw)
    assert interpret([(b"x", b"\xff")], 0).fields == (("x", "\ufffd"),)
    empty = interpret([], 0)
    assert (empty.http_status, empty.content_type, empty.grpc_status, empty.grpc_message) == (None, None, None, None)


BYTES = st.binary(max_size=6)
NAMES = (
    st.sampled_from([b":status", b"content-type", b"grpc-status", b"grpc-message", b"te", b"x", b"", b":path"]) | BYTES
)
VALUES = st.sampled_from([b"200", b"application/grpc", b"0", b"100", b"099"]) | BYTES


@examples(100)
@given(st.lists(st.one_of(st.binary(max_size=12), st.lists(st.tuples(NAMES, VALUES), max_size=3)), max_size=8))
def test_hostile_blocks_are_decoded_as_by_an_uncached_decoder(blocks: list[bytes | list[Entry]]) -> None:
    """RFC 7541: valid and random blocks alternate on three connections with one cache; both fail, or neither."""
    cache = HeaderCache()
    for _ in range(3):
        decoder, reader, encoder = hpack.Decoder(), HeaderReader(65_536, cache), hpack.Encoder()
        for said in blocks:
            block = said if isinstance(said, bytes) else encoder.encode(said)
            try:
                expected = [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
            except (hpack.HPACKError, IndexError, ValueError):
                with pytest.raises(WireError) as caught:
                    reader.read(block)
                assert caught.value.problem in (WireProblem.COMPRESSION, WireProblem.HEADER_LIST_BYTES)
                break
            found = reader.read(block)
            assert found == interpret(expected, sum(len(name) + len(value) + 32 for name, value in expected))
            assert reader.state.entries == tuple(decoder.header_table.dynamic_entries)
            assert reader.state.max_size == decoder.header_table.maxsize


def literal(name: bytes, value: bytes, *, indexed: bool = True) -> bytes:
    return bytes((0x40 if indexed else 0, len(name))) + name + bytes((len(value),)) + value


def learn_many(cache: HeaderCache, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        HeaderReader(65_536, cache).read(literal(b"n", b"%d" % number, indexed=False))


def test_the_limit_of_a_list_is_exact_for_cached_and_new_blocks() -> None:
    """Fault 52."""
    cache = HeaderCache()
    block = literal(b"x", b"y" * 10, indexed=False)
    for _ in range(2):
        assert HeaderReader(43, cache).read(block).size == 43
        with pytest.raises(WireError, match=r"^a header list over the limit of 42 \(limit header_list_bytes\)$"):
            HeaderReader(42, cache).read(block)


def test_a_block_that_is_too_long_is_not_remembered() -> None:
    cache = HeaderCache()
    size = MAX_BLOCK_BYTES - len(literal_field(b"x", b"v" * 1000)) + 1000
    for value in (b"v" * size, b"v" * (size + 1)):
        block = literal_field(b"x", value)
        assert HeaderReader(65_536, cache).read(block).fields == (("x", value.decode()),)
        assert (len(cache), len(block) <= MAX_BLOCK_BYTES) == (1, len(value) == size)


def test_one_connection_adds_a_few_blocks_and_reads_the_rest_without_caching_them() -> None:
    """Fault 65."""
    cache = HeaderCache()
    reader = HeaderReader(65_536, cache)
    for number in range(20):
        block = reader.read(literal(b"n", b"%d" % number))
        assert block.fields == (("n", str(number)),)
        assert len(cache) == min(number + 1, NEW_BLOCKS_PER_CONNECTION)


def test_a_full_cache_forgets_everything_and_starts_again() -> None:
    cache = HeaderCache()
    under_way = HeaderReader(65_536, cache)
    under_way.read(literal(b"x", b"y"))
    learn_many(cache, MAX_BLOCKS - 1)
    assert len(cache) == MAX_BLOCKS
    state = under_way.state
    learn_many(cache, 1, start=MAX_BLOCKS)
    assert len(cache) == 1
    assert list(cache.root.blocks) == [literal(b"n", b"%d" % MAX_BLOCKS, indexed=False)]
    assert (state.blocks, state.prefixes, state.prefix_sizes) == ({}, {}, ())
    # A connection that is open continues with its own table.
    assert under_way.read(b"\xbe").fields == (("x", "y"),)


def prefix(number: int, *, size: int = 0) -> ResponsePrefix:
    data = (b"o%d" % number).ljust(size, b".")
    return ResponsePrefix(data, len(data), 1, 1, 0, (), interpret([STATUS, GRPC], 0), TableState((), 4096))


def suffix(number: int) -> ResponseSuffix:
    return ResponseSuffix(b"e%d" % number, interpret([(b"grpc-status", b"0")], 0), TableState((), 4096), 0)


def test_responses_are_remembered_by_prefix_and_suffix() -> None:
    cache = HeaderCache()
    state = cache.root
    first = prefix(1)
    cache.learn_response(state, first, suffix(1))
    assert len(cache) == 2
    cache.learn_response(state, prefix(1), suffix(2))
    cache.learn_response(state, prefix(1), suffix(2))
    assert len(cache) == 3
    assert state.prefixes == {b"o1": first}
    assert set(first.suffixes) == {b"e1", b"e2"}
    assert state.prefix_sizes == (2,)


def test_a_state_remembers_prefixes_of_a_few_sizes() -> None:
    """Each size costs a look-up for every new response."""
    cache = HeaderCache()
    for size in range(10, 10 + MAX_PREFIX_SIZES + 3):
        cache.learn_response(cache.root, prefix(size, size=size), suffix(1))
    assert cache.root.prefix_sizes == tuple(range(10, 10 + MAX_PREFIX_SIZES))
    assert len(cache.root.prefixes) == MAX_PREFIX_SIZES
    cache.learn_response(cache.root, prefix(5, size=10), suffix(1))
    assert len(cache.root.prefixes) == MAX_PREFIX_SIZES + 1, "another prefix of a known size"
    cache.clear()
    assert (cache.root.prefixes, cache.root.prefix_sizes, len(cache)) == ({}, (), 0)
