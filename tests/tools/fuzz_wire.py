"""Fuzz the client half of the wire: ``python -m tests.tools.fuzz_wire --seconds N [--seed S]``.

Run it from the root of a checkout with the editable install. Each round generates the byte stream of one valid server
with h2, passes it to our client in random pieces, and compares the events with those that h2's client reads. Then it
mutates the stream and passes each mutant to our client, at the level of gRPC calls. A mutant may only cause typed
errors or the events of some valid stream, the buffer must stay bounded, and the result must not depend on the pieces.
The command prints figures; after a violation it prints the seed and exits with 1.
"""

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from plugind.protocol.wire.grpc import ClientCall
from plugind.protocol.wire.hpack_cache import MAX_BLOCKS, HeaderCache
from plugind.protocol.wire.http2 import ClientConnection
from plugind.protocol.wire.learning import KnownConversations
from plugind.protocol.wire.limits import WireLimits
from plugind.tests.tools.known_streams import GET_INFO, NOTIFY, REFUSED, Difference, answers, compare, cut
from plugind.tests.tools.known_streams import LIMITS as CONVERSATION_LIMITS
from plugind.tests.tools.wire_streams import HEAD, Generated, generate, plain_response, read_by_us

LIMITS: Final = WireLimits(message_bytes=64 * 1024)
#: Mutants of each valid stream, and conversations of each round.
MUTANTS: Final = 12
CONVERSATIONS: Final = 8
#: One unfinished frame and one unfinished header block.
MAX_BUFFER: Final = 16_384 + 9 + LIMITS.header_list_bytes

_SIZES: Final = ((1,), (1, 2, 9), (1, 9, 100, 5000), (100_000,), (17,))


class ViolationError(Exception):
    """Our client broke a rule; the message says which one."""


def pieces(chance: random.Random) -> Iterator[int]:
    """Return an endless iterator of random sizes."""
    sizes = chance.choice(_SIZES)
    return (chance.choice(sizes) for _ in itertools.count())


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Return ``data`` with a few random errors."""
    mutant = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(mutant)) if mutant else 0
        match chance.randrange(7):
            case 0:
                mutant[at : at + 1] = bytes((chance.randrange(256),))
            case 1 if mutant:
                mutant[at] ^= 1 << chance.randrange(8)
            case 2:
                del mutant[at : at + chance.randint(1, 20)]
            case 3:
                mutant[at:at] = chance.randbytes(chance.randint(1, 20))
            case 4:
                mutant[at:at] = mutant[at : at + chance.randint(1, 200)]
            case 5:
                del mutant[at:]
            case _:
                mutant[at:at] = _odd_frame(chance)
    return bytes(mutant)


def _odd_frame(chance: random.Random) -> bytes:
    """Return a well-formed frame with random content."""
    size = chance.choice((0, 0, 1, 4, 5, 6, 8, 9))
    kind, flags = chance.randrange(11), chance.choice((0, 1, 4, 5, 8, 0x20, 0xFF))
    stream = chance.choice((0, 1, 2, 3, 2**31 - 1))
    return bytes((0, 0, size, kind, flags)) + stream.to_bytes(4, "big") + chance.randbytes(size)


def check_valid(generated: Generated, chance: random.Random, cache: HeaderCache) -> None:
    """Check that our client reads a valid stream as h2 does, however it is cut."""
    read = read_by_us(generated.data, pieces(chance), generated.requests, LIMITS, cache)
    if read.failure is not None:
        raise ViolationError(f"a valid stream failed: {read.failure}")
    if read.events != generated.expected:
        raise ViolationError(f"h2 reads {generated.expected}, we read {read.events}")
    if len(cache) > MAX_BLOCKS:
        raise ViolationError(f"{len(cache)} header blocks are remembered")


def check_mutant(data: bytes, requests: int, chance: random.Random, cache: HeaderCache) -> str:
    """Check that a mutant causes only typed errors, and the same ones however it is cut. Return how it ended."""
    first = _converse(data, requests, pieces(chance), cache)
    second = _converse(data, requests, itertools.repeat(len(data) + 1), cache)
    if first != second:
        raise ViolationError(f"cut one way {first}, cut another way {second}")
    return first[0]


def _converse(data: bytes, requests: int, cuts: Iterator[int], cache: HeaderCache) -> tuple[str, list[object]]:
    """Return how a connection with ``requests`` calls ends, and how each of its calls ends."""
    connection = ClientConnection(LIMITS, cache)
    calls = [ClientCall(connection.sender, unary=number % 2 == 0) for number in range(requests)]
    for call in calls:
        connection.sender.open(call, HEAD, end=True)
    position = 0
    while position < len(data):
        size = next(cuts)
        connection.receive(data[position : position + size])
        position += size
        connection.touched.clear()
        if connection.buffered > MAX_BUFFER:
            raise ViolationError(f"{connection.buffered} bytes are buffered")
    failure = connection.failure
    connection.receive_end()
    ends: list[object] = []
    for call in calls:
        if call.outcome is None:
            raise ViolationError("a call has no outcome though its connection is over")
        ends.append((call.outcome.status, call.outcome.message, list(call.messages or ())))
    return ("went on" if failure is None else failure.problem.name), ends


def run(seed: int, cache: HeaderCache, ends: Counter[str], tables: dict[WireLimits, KnownConversations]) -> int:
    """Run one round: one valid stream and its mutants, and some conversations. Return how many of these were known.

    Raises:
        ViolationError: our client did something that it must not do.
    """
    chance = random.Random(seed)
    generated = generate(seed, LIMITS)
    check_valid(generated, chance, cache)
    for _ in range(MUTANTS):
        ends[check_mutant(mutate(generated.data, chance), generated.requests, chance, cache)] += 1
    # Whole responses in one piece, which are recognized by their bytes, and streams that only resemble them.
    plain = plain_response(chance, 1, greeting=True)
    for response in (plain, mutate(plain, chance), mutate(plain, chance)):
        ends[check_mutant(response, 1, chance, cache)] += 1
    return sum(lead(chance, tables) for _ in range(CONVERSATIONS))


def lead(chance: random.Random, tables: dict[WireLimits, KnownConversations]) -> bool:
    """Lead a registration conversation in both ways, a part of which may be garbled. Return whether it was known.

    Raises:
        ViolationError: the two ways differ.
    """
    table = tables.setdefault(limits := chance.choice(CONVERSATION_LIMITS), KnownConversations(limits))
    parts = [list(cut(frames, chance)) for frames in answers(chance)]
    if chance.random() < 0.3:
        number = chance.randrange(len(parts))
        parts[number] = list(cut([mutate(b"".join(parts[number]), chance)], chance))
    try:
        return compare(table, parts, (GET_INFO, chance.choice((NOTIFY, NOTIFY, REFUSED))))
    except Difference as found:
        raise ViolationError(f"by bytes {found.one}, by the machine {found.other}") from found


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.fuzz_wire", description="Fuzz the client half of the wire."
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="how long (default 10)")
    parser.add_argument("--seed", type=int, help="begin with this round instead of a random one")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    cache, ends, tables, recognized = HeaderCache(), Counter[str](), dict[WireLimits, KnownConversations](), 0
    began, rounds = time.monotonic(), 0
    while time.monotonic() - began < options.seconds:
        try:
            recognized += run(seed + rounds, cache, ends, tables)
        except Exception as error:  # noqa: BLE001 - any exception that escapes is a finding
            print(f"violation: {type(error).__name__}: {str(error)[:2000]}", file=sys.stderr)
            print(f"again: python -m tests.tools.fuzz_wire --seconds 1 --seed {seed + rounds}", file=sys.stderr)
            return 1
        rounds += 1
    elapsed = time.monotonic() - began
    print(f"seed {seed}: {rounds} valid streams as h2 reads them ({rounds / elapsed:.1f} a second)")
    print(f"{ends.total()} mutants, each cut in two ways, ended in typed errors alone:")
    for name, count in ends.most_common():
        print(f"  {name.lower().replace('_', ' '):<20} {count}")
    print(f"{rounds * CONVERSATIONS} conversations led in both ways without a difference, {recognized} of them known")
    return 0


if __name__ == "__main__":
    sys.exit(main())
