"""Properties of the client half of HTTP/2: h2 is the oracle in both directions, and no bytes cause an untyped error."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from plugind.protocol.wire.hpack_cache import HeaderCache
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
