"""A stream in which each message replaces the one before: only the newest is received, and what waits is bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio
import trio.testing
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.simulation.streams import ServerEnd, memory_connection
from plugind.protocol.proto.deviceplugin_v1beta1_pb2 import Device, Empty, ListAndWatchResponse
from plugind.protocol.wire.errors import WireError, WireProblem
from plugind.protocol.wire.grpc import Newest
from plugind.protocol.wire.limits import ENDPOINT_LIMITS
from plugind.tests.wire.hostile import HELLO, data, fields, headers, message, trailers

LISTS = "/v1beta1.DevicePlugin/ListAndWatch"


def device_list(*ids: str) -> bytes:
    return ListAndWatchResponse(devices=[Device(ID=name) for name in ids]).SerializeToString()


@attrs.define
class Followed:
    """What came of a stream: the messages that were taken, and the error that ended it."""

    taken: list[Newest] = attrs.field(factory=list)
    error: GRPCError | None = None


async def follow(server: Callable[[ServerEnd], Awaitable[None]], takes: int) -> Followed:
    """Take the newest message ``takes`` times, each time after a second in which another task reads."""
    made = memory_connection()
    channel = Channel(made.client, limits=ENDPOINT_LIMITS)
    followed = Followed()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.wait_closed)
        nursery.start_soon(server, made.server)
        try:
            async with channel.request(LISTS, Cardinality.UNARY_STREAM, Empty, ListAndWatchResponse) as stream:
                await stream.send_message(Empty(), end=True)
                for _ in range(takes):
                    await trio.sleep(1)
                    newest = await stream.recv_newest()
                    if newest is None:
                        break
                    followed.taken.append(newest)
                await stream.cancel()
        except GRPCError as error:
            followed.error = error
        nursery.cancel_scope.cancel()
    return followed


async def test_only_the_newest_of_the_messages_that_wait_is_received(autojump_clock: trio.testing.MockClock) -> None:
    async def server(theirs: ServerEnd) -> None:
        await theirs.receive_some()
        await theirs.send_all(HELLO + headers(1))
        for name in ("a", "b", "c"):
            await theirs.send_all(data(1, message(device_list(name))))
        await trio.sleep(1.5)
        await theirs.send_all(data(1, message(device_list("d"))) + trailers(1))

    size = len(message(device_list("a")))
    newest = [Newest(device_list("c"), 3, 3 * size), Newest(device_list("d"), 1, size)]
    assert await follow(server, 5) == Followed(newest)


async def test_the_message_before_an_error_is_received_and_then_the_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    failed = trailers(1, fields(("grpc-status", "13")))

    async def server(theirs: ServerEnd) -> None:
        await theirs.receive_some()
        await theirs.send_all(HELLO + headers(1) + data(1, message(device_list("a"))) + failed)

    followed = await follow(server, 2)
    assert [newest.message for newest in followed.taken] == [device_list("a")]
    assert followed.error is not None
    assert followed.error.status is Status.INTERNAL


async def test_a_peer_that_sends_more_than_is_taken_is_stopped_by_its_window(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Fault 65: what waits is at most two windows, and the peer may go on when it was taken."""
    one = data(1, message(bytes(16_000)))
    sent = 0

    async def server(theirs: ServerEnd) -> None:
        nonlocal sent
        window = ENDPOINT_LIMITS.stream_window
        await theirs.receive_some()
        await theirs.send_all(HELLO + headers(1))
        while True:
            while window >= 16_005:
                window -= 16_005
                sent += 1
                await theirs.send_all(one)
            heard = bytes(await theirs.receive_some())
            window += _credited(heard, stream=1)

    taken = (await follow(server, 30)).taken
    most = 2 * ENDPOINT_LIMITS.stream_window
    assert len(taken) == 30
    assert max(newest.size for newest in taken) <= most
    assert 0 <= sent * 16_005 - sum(newest.size for newest in taken) <= most


async def test_a_list_over_four_mebibytes_is_refused_before_it_has_come(autojump_clock: trio.testing.MockClock) -> None:
    """Fault 50: its length says enough."""

    async def server(theirs: ServerEnd) -> None:
        await theirs.receive_some()
        await theirs.send_all(HELLO + headers(1) + data(1, message(bytes(5 * 1024 * 1024))[:100]))

    error = (await follow(server, 1)).error
    assert error is not None
    assert error.message == "a message of 5242880 bytes over the limit of 4194304 (limit message_bytes)"


async def test_tiny_messages_without_end_use_up_their_budget(autojump_clock: trio.testing.MockClock) -> None:
    """Fault 56: ten thousand in ten seconds are too many, since each costs as much as a large one."""

    async def server(theirs: ServerEnd) -> None:
        await theirs.receive_some()
        await theirs.send_all(HELLO + headers(1))
        for _ in range(11):
            await theirs.send_all(data(1, message(b"")) * 1_000)

    error = (await follow(server, 2)).error
    assert error is not None
    assert isinstance(error.__cause__, WireError)
    assert error.__cause__.problem is WireProblem.SMALL_DATA


def _credited(heard: bytes, *, stream: int) -> int:
    """Return how many bytes the WINDOW_UPDATE frames in ``heard`` allow on ``stream``."""
    credit = position = 0
    while position < len(heard):
        size = int.from_bytes(heard[position : position + 3], "big")
        if heard[position + 3] == 8 and int.from_bytes(heard[position + 5 : position + 9], "big") == stream:
            credit += int.from_bytes(heard[position + 9 : position + 13], "big")
        position += 9 + size
    return credit
