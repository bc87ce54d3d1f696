"""Connections of one node beside each other: flooders take their turns last, and all share one account of bytes."""

from __future__ import annotations

import itertools
import struct

import attrs
import pytest
import trio
import trio.testing
from grpclib.exceptions import GRPCError

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.grpc.client.transport import READ_BYTES
from plugind.actors.grpc.client.turns import TURN, PassTurns, Shared
from plugind.actors.simulation.streams import ServerEnd, memory_connection
from plugind.protocol.wire.errors import WireError, WireProblem
from plugind.protocol.wire.frames import PING, frame
from plugind.protocol.wire.limits import REGISTRATION_LIMITS, UNLIMITED, WireLimits
from plugind.tests.wire.hostile import HELLO, INFO, answer, data, get_info, headers

#: A message of 60,000 bytes whose end never comes.
BEGUN = HELLO + headers(1) + data(1, struct.pack(">BI", 0, 60_000))


def in_memory(shared: Shared, limits: WireLimits = REGISTRATION_LIMITS) -> tuple[Channel, ServerEnd]:
    made = memory_connection()
    return Channel(made.client, limits=limits, shared=shared), made.server


def frames_handled(channel: Channel) -> int:
    return (REGISTRATION_LIMITS.call_frames or 0) - channel.connection.budgets.frames_left


async def test_turns_are_taken_in_the_order_of_the_requests() -> None:
    turns, numbers = PassTurns(), list[int]()

    async def flood(number: int) -> None:
        for _ in range(3):
            await turns.wait()
            numbers.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(flood, number)
    assert numbers[:10] == numbers[10:20] == numbers[20:], "each has one turn before any has another"
    assert sorted(numbers[:10]) == list(range(10))


async def test_a_turn_that_is_cancelled_goes_to_the_next() -> None:
    turns, taken = PassTurns(), list[str]()

    async def take(name: str, scope: trio.CancelScope) -> None:
        with scope:
            await turns.wait()
            taken.append(name)

    for cancelled in ("first", "second", "third"):
        taken.clear()
        scopes = {name: trio.CancelScope() for name in ("first", "second", "third")}
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for name, scope in scopes.items():
                    nursery.start_soon(take, name, scope)
                scopes[cancelled].cancel()
            await turns.wait()
        assert len(taken) >= 2


@pytest.mark.parametrize(
    "flood",
    [headers(1) + data(1, struct.pack(">BI", 0, 60_000)) + data(1, b"x") * 1500, frame(PING, 0, 0, bytes(8)) * 900],
    ids=["fault 56: DATA of one byte", "fault 54: PING"],
)
async def test_flooders_take_one_turn_together_for_each_step_of_others(flood: bytes) -> None:
    """Without budgets: each has its first turn, and then all together have one in each pass of the loop."""
    limits = attrs.evolve(REGISTRATION_LIMITS, call_frames=None, pings=10_000)
    shared, steps = Shared(), 20
    flooders = [await prepared(shared, HELLO + flood, limits) for _ in range(50)]
    good = await prepared(shared, HELLO + answer(1), limits)
    async with trio.open_nursery() as nursery:
        for channel in flooders:
            nursery.start_soon(fails, channel)
        await trio.lowlevel.checkpoint()
        assert await get_info(good, None) == INFO
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        handled = sum(UNLIMITED - channel.connection.budgets.frames_left for channel in flooders)
        assert 50 * (TURN - 20) <= handled <= (50 + steps + 10) * TURN
        nursery.cancel_scope.cancel()


async def prepared(shared: Shared, sent: bytes, limits: WireLimits) -> Channel:
    """Return a channel on which ``sent`` waits to be read."""
    channel, theirs = in_memory(shared, limits)
    await theirs.send_all(sent)
    return channel


async def fails(channel: Channel) -> None:
    with pytest.raises(GRPCError):
        await get_info(channel, None)


async def test_a_flooder_that_is_alone_goes_on_until_its_budget_ends() -> None:
    """Fault 56: nobody waits for anything else, and the reason names the budget."""
    channel, theirs = in_memory(Shared())
    await theirs.send_all(BEGUN + data(1, b"x") * 5000)
    used_up = list[int]()
    channel.on_used_up = lambda: used_up.append(frames_handled(channel))
    with pytest.raises(GRPCError) as caught:
        await get_info(channel, None)
    assert caught.value.message == "frames for one call over the limit of 256 (limit call_frames)"
    assert len(used_up) == 2
    assert all(0 < later - earlier <= TURN for earlier, later in itertools.pairwise([0, *used_up]))


async def test_a_whole_read_is_a_whole_turn() -> None:
    """A peer that always has bytes ready goes last, also where they are few frames."""
    channel, theirs = in_memory(Shared())
    reads = list[int]()
    channel.on_used_up = lambda: reads.append(channel.connection.buffered)
    await theirs.send_all(
        HELLO + headers(1) + data(1, struct.pack(">BI", 0, 60_000) + bytes(16_000)) + bytes(READ_BYTES)
    )
    with pytest.raises(GRPCError):
        await get_info(channel, None)
    assert len(reads) == 1


async def test_a_channel_may_be_closed_while_it_waits_for_its_turn() -> None:
    shared = Shared()
    channel, theirs = in_memory(shared)
    await theirs.send_all(BEGUN + data(1, b"x") * 1000)
    channel.on_used_up = channel.close
    with pytest.raises(trio.ClosedResourceError):
        await get_info(channel, None)
    assert shared.unparsed.kept == 0
    other, theirs = in_memory(shared)
    await theirs.send_all(HELLO + answer(1))
    assert await get_info(other, None) == INFO


async def test_half_sent_messages_fill_the_account_and_no_more(autojump_clock: trio.testing.MockClock) -> None:
    """Fault 65: those without room are refused, the others end at their deadline, and all of it is given back."""
    shared = Shared(REGISTRATION_LIMITS.unparsed_bytes)
    reasons = list[WireProblem | None]()

    async def half_sent() -> None:
        channel, theirs = in_memory(shared)
        await theirs.send_all(BEGUN + data(1, bytes(16_000)) + data(1, bytes(16_000)) + data(1, bytes(16_000)))
        async with channel:
            with pytest.raises(GRPCError) as caught:
                await get_info(channel, 1)
        cause = caught.value.__cause__
        reasons.append(cause.problem if isinstance(cause, WireError) else None)

    async with trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(half_sent)
        await trio.sleep(0.5)
        assert 1_500_000 < shared.unparsed.kept <= shared.unparsed.limit
        await answered_in_pieces(shared)
    assert shared.unparsed.kept == 0
    assert set(reasons) == {None, WireProblem.UNPARSED_BYTES}
    assert reasons.count(WireProblem.UNPARSED_BYTES) > 150


async def answered_in_pieces(shared: Shared) -> None:
    """Make a call whose answer comes byte by byte; so little is always accepted."""
    channel, theirs = in_memory(shared)
    theirs.seconds_per_byte = 0.001
    async with channel, trio.open_nursery() as nursery:
        nursery.start_soon(theirs.send_all, HELLO + answer(1))
        assert await get_info(channel, 1) == INFO
